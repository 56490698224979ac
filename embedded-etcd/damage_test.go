package embeddedetcd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// written makes a store with rows small and large, some of them changed, deleted and compacted, a lease, and pages that are free, and
// returns its directory.
func written(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "etcd")
	etcd, err := Start(t.Context(), Options{Dir: dir})
	noError(t, err)
	noError(t, etcd.keeper.keep(t.Context(), false)) // so that what stopping notes is added to it
	ctx, c := t.Context(), etcd.Client
	put := func(key, value string, options ...clientv3.OpOption) int64 {
		t.Helper()
		done, err := c.Put(ctx, key, value, options...)
		noError(t, err)
		return done.Header.Revision
	}
	for i := range 600 {
		size := 200
		if i%50 == 0 {
			size = 30_000 // several pages
		}
		put(fmt.Sprintf("/registry/configmaps/c/default/%d", i), strings.Repeat(fmt.Sprint(i, " "), size/4))
	}
	lease, err := c.Grant(ctx, 3600)
	noError(t, err)
	put("/registry/events/c/default/e", "an event", clientv3.WithLease(lease.ID))
	for i := range 100 {
		_, err := c.Delete(ctx, fmt.Sprintf("/registry/configmaps/c/default/%d", 3*i))
		noError(t, err)
	}
	_, err = c.Compact(ctx, put("/registry/secrets/c/default/s", "changed"), clientv3.WithCompactPhysical())
	noError(t, err)
	for i := range 200 {
		put(fmt.Sprintf("/registry/configmaps/c/default/%d", 1000+i), strings.Repeat("later ", 100))
	}
	noError(t, etcd.Stop())
	return dir
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func files(dir string) (db, sums string) {
	return filepath.Join(dir, dataDir, "member", "snap", "db"), filepath.Join(dir, dataDir, checksumsFile)
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	noError(t, err)
	return data
}

// everything is what a file of bbolt's has, as name of the bucket and rows, and how far in its log it is.
func everything(data []byte) (rows map[string][]row, err error) {
	p, err := readPages(data)
	if err != nil {
		return nil, err
	}
	buckets, err := p.buckets()
	if err != nil {
		return nil, err
	}
	rows = map[string][]row{}
	for _, b := range buckets {
		if err := p.rows(b, func(r row) error { rows[string(b.key)] = append(rows[string(b.key)], r); return nil }); err != nil {
			return nil, err
		}
	}
	return rows, p.whole()
}

// examineBytes is examineStore without its files.
func examineBytes(data, sums []byte) error {
	c := &comparison{known: &checksums{from: bytes.NewReader(sums)}}
	position, err := readStore(data, c)
	if err != nil {
		return err
	}
	if err := c.rest(); err != nil {
		return err
	}
	switch {
	case c.damage.rows > 0:
		return c.damage
	case position < c.known.position:
		return errors.New("it is behind")
	}
	return nil
}

// TestDamageInTheStoreIsFound changes bytes of the file of a store, everywhere in it: in its heads, in the pages that lead to others, in
// those that have the rows, and in values. Each is found before anything opens the file, or changes no row that the API is served from.
func TestDamageInTheStoreIsFound(t *testing.T) {
	db, sumsFile := files(written(t))
	data, sums := read(t, db), read(t, sumsFile)
	noError(t, examineBytes(data, sums))
	whole, err := everything(data)
	noError(t, err)
	if n := len(whole["key"]); n < 600 {
		t.Fatalf("%d rows in the store", n)
	}
	p, err := readPages(data)
	noError(t, err)
	newest := p.transaction % 2 // the head that counts
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	kinds := map[string][]uint64{} // offsets
	used := usedPages(t, data)
	for id := range uint64(len(used)) {
		kind := "a page that is free"
		at := id * p.size
		switch {
		case id < 2 && id == newest:
			kind = "the head"
		case id < 2:
			kind = "the older head"
		case used[id] == 0:
		case used[id] != id:
			kind = "a value over several pages"
		case binary.NativeEndian.Uint16(data[at+8:]) == branchPage:
			kind = "a branch page"
		default:
			kind = "a leaf page"
		}
		for o := range p.size {
			kinds[kind] = append(kinds[kind], at+o)
		}
	}
	var values []uint64
	for _, r := range whole["key"] {
		at := uint64(cap(data) - cap(r.value)) // it is a part of data
		for o := range uint64(len(r.value)) {
			values = append(values, at+o)
		}
	}
	kinds["a value"] = values
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		offsets, found, elsewhere := kinds[kind], 0, map[string]int{}
		const tries = 400
		for range tries {
			at := offsets[random.IntN(len(offsets))]
			was := data[at]
			data[at] ^= byte(1 + random.IntN(255))
			err := examineBytes(data, sums)
			if err != nil {
				found++
			} else if is, err := everything(data); err != nil {
				t.Errorf("%s, byte %d: it was found whole, and then %v", kind, at, err)
			} else {
				for bucket := range whole {
					if same := slices.EqualFunc(whole[bucket], is[bucket], func(a, b row) bool { return bytes.Equal(a.key, b.key) && bytes.Equal(a.value, b.value) }); same {
						continue
					}
					if strings.HasSuffix(kind, "head") && len(is[bucket]) <= len(whole[bucket]) {
						continue // the state before: what came last is in the log
					}
					if elsewhere[bucket]++; bucket == "key" {
						t.Errorf("%s, byte %d: rows are others, and nothing was found", kind, at)
					}
				}
			}
			data[at] = was
		}
		t.Logf("%s: %d of %d changed bytes are found; not found, and read, in: %v", kind, found, tries, elsewhere)
		if kind != "a page that is free" && !strings.HasSuffix(kind, "head") && found == 0 {
			t.Errorf("%s: nothing of it is found", kind)
		}
	}
	if len(kinds["a branch page"]) == 0 || len(kinds["a value over several pages"]) == 0 || len(kinds["a page that is free"]) == 0 {
		t.Errorf("the store has not all kinds of pages")
	}
}

// usedPages are, for each page, the one that it is a part of; 0: it is free.
func usedPages(t *testing.T, data []byte) []uint64 {
	t.Helper()
	p, err := readPages(data)
	noError(t, err)
	buckets, err := p.buckets()
	noError(t, err)
	for _, b := range buckets {
		noError(t, p.rows(b, func(row) error { return nil }))
	}
	parts := make([]uint64, p.beyond)
	for id := uint64(2); id < p.beyond; id++ {
		if parts[id] != 0 || !p.used[id] {
			continue
		}
		for i := range uint64(binary.NativeEndian.Uint32(data[id*p.size+12:])) + 1 {
			parts[id+i] = id
		}
	}
	return parts
}

// TestDamageInTheLogIsFound changes bytes of etcd's log: what etcd would cut off, although the store has it, is found before.
func TestDamageInTheLogIsFound(t *testing.T) {
	dir := written(t)
	names, err := filepath.Glob(filepath.Join(dir, dataDir, "member", "wal", "*.wal"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	data := read(t, names[0])
	end := len(bytes.TrimRight(data, "\x00"))
	last, err := lastEntry(names[0])
	noError(t, err)
	logs := filepath.Dir(names[0])
	noError(t, examineLog(logs, last))
	random := rand.New(rand.NewPCG(1, 0))
	const tries = 200
	for range tries {
		at := random.IntN(end - 8)
		damaged := bytes.Clone(data[:end+1000])
		for i := range 8 {
			damaged[at+i] ^= 0xff
		}
		noError(t, os.WriteFile(names[0], damaged, 0o600))
		if err := examineLog(logs, last); err == nil || !strings.Contains(err.Error(), names[0]) || !strings.Contains(err.Error(), "atoll restore") {
			t.Errorf("8 bytes at %d of %d are changed: %v", at, end, err)
		}
	}
	// What the end of a machine left half written, and nobody was told of, is not damage.
	torn := append(bytes.Clone(data[:end]), 0x40, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3)
	noError(t, os.WriteFile(names[0], torn, 0o600))
	if err := examineLog(logs, last); err != nil {
		t.Errorf("half of an entry that was not acknowledged: %v", err)
	}
}

// TestChecksumsEndWhereTheyAreNotWhole: whatever a crash leaves of the file of checksums, or a disk makes of it, what is read of it is a
// beginning of what was written.
func TestChecksumsEndWhereTheyAreNotWhole(t *testing.T) {
	var whole []byte
	var want []sum
	random := rand.New(rand.NewPCG(2, 0))
	for block := range 20 {
		var sums []sum
		for range random.IntN(30) {
			sums = append(sums, sum{revision{uint64(len(want) + len(sums)), random.Uint64N(5)}, random.Uint32()})
		}
		want = append(want, sums...)
		whole = appendBlock(whole, uint64(block), sums)
	}
	all := func(data []byte) (got []sum, c *checksums) {
		c = &checksums{from: bytes.NewReader(data)}
		for {
			s, more, err := c.next()
			noError(t, err)
			if !more {
				return got, c
			}
			got = append(got, s)
		}
	}
	if got, c := all(whole); !slices.Equal(got, want) || c.cut || c.position != 19 {
		t.Fatalf("%d sums of %d, cut %v, position %d", len(got), len(want), c.cut, c.position)
	}
	for end := range len(whole) {
		if got, _ := all(whole[:end]); !slices.Equal(got, want[:len(got)]) {
			t.Errorf("the first %d bytes: other sums", end)
		}
	}
	for at := range len(whole) {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x10
		if got, c := all(damaged); !slices.Equal(got, want[:len(got)]) || !c.cut && len(got) == len(want) && at%blockHead < 20 {
			t.Errorf("byte %d is changed: %d sums, cut %v", at, len(got), c.cut)
		}
	}
}

// TestDamagedValue changes a value in the file of a store that is stopped: it is not opened, and whoever decides that can go on with what
// is there. What a server finds while it runs, it says, and it does not start again over it either.
func TestDamagedValue(t *testing.T) {
	dir := written(t)
	db, sumsFile := files(dir)
	data := read(t, db)
	rows, err := everything(data)
	noError(t, err)
	for _, r := range rows["key"] {
		if bytes.Contains(r.value, []byte("/registry/secrets/c/default/s")) {
			copy(r.value[bytes.Index(r.value, []byte("changed")):], "CHANGED") // in data
		}
	}
	noError(t, os.WriteFile(db, data, 0o600))
	open := func() (*Etcd, error) { return Start(t.Context(), Options{Dir: dir}) }
	refused := func(parts ...string) {
		t.Helper()
		etcd, err := open()
		if err == nil {
			t.Fatal("it is opened", etcd.Stop())
		}
		for _, part := range append(parts, db, sumsFile, "atoll restore", "1 rows are not what was written") {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v: want %q", err, part)
			}
		}
	}
	refused("/registry/secrets/c/default/s")
	refused("/registry/secrets/c/default/s") // nothing was made good in silence

	noError(t, os.Rename(sumsFile, sumsFile+".aside"))
	etcd, err := open()
	noError(t, err)
	got, err := etcd.Client.Get(t.Context(), "/registry/secrets/c/default/s")
	if err != nil || string(got.Kvs[0].Value) != "CHANGED" {
		t.Errorf("%v, %v", got, err)
	}
	noError(t, etcd.Damage())
	noError(t, etcd.keeper.keep(t.Context(), false)) // which a server that is stopped at once leaves to the next start
	noError(t, etcd.Stop())
	etcd, err = open()
	noError(t, err)
	noError(t, etcd.Stop())

	// A row that is other than its checksum is all that a server which runs can see of damage.
	sums := read(t, sumsFile)
	damagedSums := &checksums{from: bytes.NewReader(sums)}
	var blocks []byte
	for n := 0; ; n++ {
		s, more, err := damagedSums.next()
		noError(t, err)
		if !more {
			break
		}
		if n == 17 {
			s.crc++
		}
		blocks = appendBlock(blocks, damagedSums.position, []sum{s})
	}
	etcd, err = open()
	noError(t, err)
	noError(t, os.WriteFile(sumsFile, blocks, 0o600))
	k := etcd.keeper
	if err := k.keep(t.Context(), true); err != nil || etcd.Damage() == nil {
		t.Errorf("damage while it runs: %v, %v", err, etcd.Damage())
	}
	if _, err := etcd.Client.Put(t.Context(), "/registry/secrets/c/default/more", "goes on"); err != nil {
		t.Error(err)
	}
	noError(t, etcd.Stop())
	refused()
}

// TestDamagedHead changes the head of the file that says what is newest: what it had and the one before has not, comes from the log.
func TestDamagedHead(t *testing.T) {
	dir := written(t)
	db, _ := files(dir)
	data := read(t, db)
	p, err := readPages(data)
	noError(t, err)
	want, err := everything(data)
	noError(t, err)
	data[p.transaction%2*p.size+pageHeader+20] ^= 1
	noError(t, os.WriteFile(db, data, 0o600))
	etcd, err := Start(t.Context(), Options{Dir: dir})
	noError(t, err)
	noError(t, etcd.Stop())
	is, err := everything(read(t, db))
	noError(t, err)
	if same := slices.EqualFunc(want["key"], is["key"], func(a, b row) bool { return bytes.Equal(a.key, b.key) && bytes.Equal(a.value, b.value) }); !same {
		t.Errorf("%d rows, of %d, or others", len(is["key"]), len(want["key"]))
	}
}

// TestStoreThatFellBehind: another, older file in the place of the store's is seen, since there are checksums of what it lacks.
func TestStoreThatFellBehind(t *testing.T) {
	dir := written(t)
	older := filepath.Join(t.TempDir(), "older")
	noError(t, os.CopyFS(older, os.DirFS(dir)))
	etcd, err := Start(context.Background(), Options{Dir: dir})
	noError(t, err)
	for range 10 {
		_, err := etcd.Client.Put(t.Context(), "/registry/more", "x")
		noError(t, err)
	}
	noError(t, etcd.Stop())
	noError(t, os.RemoveAll(filepath.Join(dir, dataDir, "member")))
	noError(t, os.CopyFS(filepath.Join(dir, dataDir, "member"), os.DirFS(filepath.Join(older, dataDir, "member"))))
	if etcd, err := Start(t.Context(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "and was at") {
		t.Errorf("an older store is opened: %v", err)
		if err == nil {
			noError(t, etcd.Stop())
		}
	}
}

// TestChecksumsThatEndInATransaction: a server that is killed while it writes checksums down may leave those of a part of a transaction. The rest
// of it counts as it is, and stays what was written by whoever writes later.
func TestChecksumsThatEndInATransaction(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	put := func(etcd *Etcd, transactions, rows int) {
		t.Helper()
		for i := range transactions {
			var ops []clientv3.Op
			for row := range rows {
				ops = append(ops, clientv3.OpPut(fmt.Sprintf("/registry/configmaps/c/default/%d-%d", i, row), "value"))
			}
			_, err := etcd.Client.Txn(t.Context()).Then(ops...).Commit()
			noError(t, err)
		}
	}
	start := func(when string) *Etcd {
		t.Helper()
		etcd, err := Start(t.Context(), Options{Dir: dir})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		return etcd
	}
	etcd := start("at first")
	noError(t, etcd.keeper.keep(t.Context(), false))
	put(etcd, blockSums/100+1, 100) // a block ends within one
	noError(t, etcd.Stop())

	_, sumsFile := files(dir)
	sums := read(t, sumsFile)
	full := 0
	for at := 0; at < len(sums); {
		count := int(binary.LittleEndian.Uint32(sums[at+4:]))
		at += blockHead + count*sumSize
		if count == blockSums {
			full = at
		}
	}
	if full == 0 {
		t.Fatal("no block is full")
	}
	noError(t, os.WriteFile(sumsFile, sums[:full], 0o600))
	for _, when := range []string{"after it was killed", "once more", "and again"} {
		etcd := start(when)
		put(etcd, 1, 2)
		noError(t, etcd.keeper.keep(t.Context(), false))
		noError(t, etcd.keeper.keep(t.Context(), true))
		noError(t, etcd.Damage())
		noError(t, etcd.Stop())
	}
}

// TestStoreThatWasNeverWritten: a first start that ended before its store had anything is begun anew.
func TestStoreThatWasNeverWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	db, _ := files(dir)
	noError(t, os.MkdirAll(filepath.Dir(db), 0o700))
	noError(t, os.WriteFile(db, nil, 0o600))
	etcd, err := Start(t.Context(), Options{Dir: dir})
	noError(t, err)
	noError(t, etcd.Stop())
	noError(t, os.Truncate(db, 0)) // now there is a log
	if etcd, err := Start(t.Context(), Options{Dir: dir}); err == nil {
		t.Error("a store that lost its rows is opened", etcd.Stop())
	}
}
