package embeddedetcd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"syscall"
)

// The file of etcd's store is bbolt's: pages that are trees of keys and values, without checksums. bbolt follows whatever a page
// says, and where that is damaged it ends the process, in goroutines of its own, or serves something else. So the file is read here
// before bbolt has it, by what bbolt always writes: whatever is found to be otherwise is damage.
const (
	pageHeader  = 16 // id uint64, kind uint16, count uint16, how many more pages belong to it uint32
	pageElement = 16 // of a branch: position, size of the key uint32, page uint64; of a leaf: flags, position, sizes of key and value uint32

	branchPage, leafPage, freePage = 0x01, 0x02, 0x10

	metaSize            = 64
	metaMagic           = 0xED0CDAED
	metaVersion         = 2
	noFreePage   uint64 = math.MaxUint64
	bucketHeader        = 16 // page uint64, sequence uint64
	isBucket            = 1
	leastPage           = 1 << 9
	mostPage            = 1 << 16
)

// pages are the pages of a file of bbolt's.
type pages struct {
	data        []byte
	size        uint64 // of one
	root, free  uint64 // where the buckets are, and the list of the pages that are free; noFreePage: nobody wrote one down
	beyond      uint64 // the first number that no page has
	transaction uint64
	used        []bool
}

// row is what a bucket has.
type row struct{ key, value []byte }

// readPages finds the newest state in a file of bbolt's.
func readPages(data []byte) (*pages, error) {
	var newest *pages
	// The second head is one page from the first, which says how large that is, if it can.
	first := metaAt(data, 0)
	if first != nil {
		newest = first
		if second := metaAt(data, first.size); second != nil && second.transaction > first.transaction {
			newest = second
		}
	} else {
		for size := uint64(leastPage); size <= mostPage && newest == nil; size *= 2 {
			if second := metaAt(data, size); second != nil && second.size == size {
				newest = second
			}
		}
	}
	if newest == nil {
		return nil, errors.New("neither of its two heads is whole")
	}
	if most := uint64(len(data)) / newest.size; newest.beyond > most {
		return nil, fmt.Errorf("it is cut off: it has %d pages, and %d are said to be there", most, newest.beyond)
	}
	newest.used = make([]bool, newest.beyond)
	return newest, nil
}

// metaAt is what the head at a position says; nil: there is no whole one.
func metaAt(data []byte, at uint64) *pages {
	if uint64(len(data)) < at+pageHeader+metaSize {
		return nil
	}
	m, order := data[at+pageHeader:][:metaSize], binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(m[:metaSize-8]) // a hash takes everything
	if order.Uint32(m) != metaMagic || order.Uint32(m[4:]) != metaVersion || order.Uint64(m[metaSize-8:]) != sum.Sum64() {
		return nil
	}
	return &pages{
		data: data, size: uint64(order.Uint32(m[8:])), root: order.Uint64(m[16:]), free: order.Uint64(m[32:]),
		beyond: order.Uint64(m[40:]), transaction: order.Uint64(m[48:]),
	}
}

// buckets reads the names of all buckets and what is written down about each.
func (p *pages) buckets() ([]row, error) {
	var found []row
	err := p.tree(p.root, nil, nil, func(flags uint32, r row) error {
		if flags != isBucket || len(r.value) < bucketHeader {
			return fmt.Errorf("%q is no bucket", r.key)
		}
		found = append(found, r)
		return nil
	})
	return found, err
}

// rows reads a bucket, in the order of its keys.
func (p *pages) rows(bucket row, each func(row) error) error {
	visit := func(flags uint32, r row) error {
		if flags != 0 {
			return fmt.Errorf("%x in the bucket %q has the flags %x", r.key, bucket.key, flags)
		}
		return each(r)
	}
	root, inline := binary.NativeEndian.Uint64(bucket.value), bucket.value[bucketHeader:]
	if root != 0 {
		return p.tree(root, nil, nil, visit)
	}
	if len(inline) < pageHeader || binary.NativeEndian.Uint16(inline[8:]) != leafPage {
		return fmt.Errorf("the bucket %q has no page", bucket.key)
	}
	if err := p.leaf(inline, nil, nil, visit); err != nil {
		return fmt.Errorf("the bucket %q: %w", bucket.key, err)
	}
	return nil
}

// whole checks what no row shows: that no page which is in use is said to be free. Everything else has been read.
func (p *pages) whole() error {
	if p.free == noFreePage {
		return nil
	}
	content, kind, err := p.page(p.free)
	if err != nil {
		return err
	}
	count, ids := uint64(binary.NativeEndian.Uint16(content[10:])), content[pageHeader:]
	if count == math.MaxUint16 && len(ids) >= 8 {
		count, ids = binary.NativeEndian.Uint64(ids), ids[8:]
	}
	if kind != freePage || count > uint64(len(ids)/8) {
		return fmt.Errorf("page %d is no list of free pages", p.free)
	}
	for i := range count {
		id := binary.NativeEndian.Uint64(ids[i*8:])
		if id >= p.beyond || p.used[id] {
			return fmt.Errorf("page %d is in use, or not there, and said to be free", id)
		}
	}
	return nil
}

// page is the content of a page that nothing else has led to.
func (p *pages) page(id uint64) (content []byte, kind uint16, err error) {
	if id < 2 || id >= p.beyond {
		return nil, 0, fmt.Errorf("page %d is asked for, and it has %d", id, p.beyond)
	}
	order, start := binary.NativeEndian, p.data[id*p.size:]
	more := uint64(order.Uint32(start[12:]))
	if order.Uint64(start) != id || more >= p.beyond-id {
		return nil, 0, fmt.Errorf("page %d does not begin as such", id)
	}
	for i := id; i <= id+more; i++ {
		if p.used[i] {
			return nil, 0, fmt.Errorf("page %d is in use twice", i)
		}
		p.used[i] = true
	}
	return start[:(more+1)*p.size], order.Uint16(start[8:]), nil
}

// tree reads what is below a page: keys from one up to another, nil being none.
func (p *pages) tree(id uint64, from, before []byte, each func(flags uint32, r row) error) error {
	content, kind, err := p.page(id)
	if err != nil {
		return err
	}
	switch kind {
	case leafPage:
		err = p.leaf(content, from, before, each)
	case branchPage:
		return p.branch(id, content, from, before, each)
	default:
		err = fmt.Errorf("is of the kind %x", kind)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

func (p *pages) branch(id uint64, content, from, before []byte, each func(uint32, row) error) error {
	order, count := binary.NativeEndian, int(binary.NativeEndian.Uint16(content[10:]))
	at := pageHeader + count*pageElement
	key := func(i int) ([]byte, error) {
		element := content[pageHeader+i*pageElement:][:pageElement]
		size := uint64(order.Uint32(element[4:]))
		if uint64(order.Uint32(element)) != uint64(at-pageHeader-i*pageElement) || size > uint64(len(content)-at) {
			return nil, fmt.Errorf("page %d: its entry %d leads elsewhere", id, i)
		}
		at += int(size)
		return content[at-int(size) : at], nil
	}
	if count == 0 || at > len(content) {
		return fmt.Errorf("page %d: it cannot have %d entries", id, count)
	}
	next, err := key(0)
	for i := 0; i < count && err == nil; i++ {
		own, until := next, before
		if i+1 < count {
			if next, err = key(i + 1); err != nil {
				break
			}
			until = next
		}
		if !within(own, from, until) {
			return fmt.Errorf("page %d: its entry %d is out of order", id, i)
		}
		err = p.tree(order.Uint64(content[pageHeader+i*pageElement+8:]), own, until, each)
		from = own
	}
	return err
}

// within says whether a key is not below from, and below before.
func within(key, from, before []byte) bool {
	return bytes.Compare(key, from) >= 0 && (before == nil || bytes.Compare(key, before) < 0)
}

func (p *pages) leaf(content, from, before []byte, each func(uint32, row) error) error {
	order, count := binary.NativeEndian, int(binary.NativeEndian.Uint16(content[10:]))
	at := pageHeader + count*pageElement
	if at > len(content) {
		return fmt.Errorf("it cannot have %d rows", count)
	}
	var last []byte
	for i := range count {
		element := content[pageHeader+i*pageElement:][:pageElement]
		keySize, valueSize := uint64(order.Uint32(element[8:])), uint64(order.Uint32(element[12:]))
		if uint64(order.Uint32(element[4:])) != uint64(at-pageHeader-i*pageElement) || keySize+valueSize > uint64(len(content)-at) {
			return fmt.Errorf("its row %d leads elsewhere", i)
		}
		end := at + int(keySize)
		r := row{key: content[at:end], value: content[end : end+int(valueSize)]}
		at = end + int(valueSize)
		if !within(r.key, from, before) || i > 0 && bytes.Equal(r.key, last) {
			return fmt.Errorf("its row %d is out of order", i)
		}
		from, last = r.key, r.key
		if err := each(order.Uint32(element), r); err != nil {
			return err
		}
	}
	return nil
}

// mapFile reads a file once, from its beginning to its end, and returns what it holds, until done is called: what cannot be read has an
// error then, where bbolt would end the process, and what bbolt reads next is in memory.
func mapFile(name string) (data []byte, done func(), err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	size, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	if err != nil {
		return nil, nil, err
	}
	if size == 0 {
		return nil, func() {}, nil
	}
	if data, err = syscall.Mmap(int(f.Fd()), 0, int(size), syscall.PROT_READ, syscall.MAP_SHARED); err != nil {
		return nil, nil, fmt.Errorf("map %s: %w", name, err)
	}
	return data, func() { _ = syscall.Munmap(data) }, nil
}
