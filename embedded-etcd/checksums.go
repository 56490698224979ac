package embeddedetcd

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
)

// Nothing in etcd's store would notice that the disk changed a value. So there is a file of checksums beside it: of each row, which etcd
// never changes once it is written, but for its end when a compaction takes it. It is blocks, each with a checksum of its own: a head,
// and the sums of rows in their order. What follows a block that is not whole counts for nothing: nobody waits until blocks are on the
// disk, and where there are none the rows count as they are. Blocks that are full may end between two rows of one transaction: what is written
// down together ends with one that is not full, and a file that does not is written anew, not appended to.
const (
	checksumsFile  = "checksums"
	checksumsMagic = 0x41544f53
	blockHead      = 24 // magic uint32, count uint32, position in etcd's log uint64, checksum of all that and the sums uint32, nothing uint32
	sumSize        = 16 // main revision uint64, sub revision uint32, checksum uint32
	blockSums      = 4096
	revisionSize   = 17 // of a row's key: the main revision, "_", the sub revision; a "t" follows if it says that the key was deleted
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli) // which processors compute by themselves

// revision is the one of a row: rows of one transaction have the same main one.
type revision struct{ main, sub uint64 }

func (r revision) before(other revision) bool {
	return r.main < other.main || r.main == other.main && r.sub < other.sub
}

// sum is the checksum of a row.
type sum struct {
	revision
	crc uint32
}

// sumOf is the checksum of a row of etcd's rows.
func sumOf(r row) (sum, error) {
	if len(r.key) < revisionSize || len(r.key) > revisionSize+1 || r.key[8] != '_' {
		return sum{}, fmt.Errorf("%x is no revision", r.key)
	}
	of := revision{binary.BigEndian.Uint64(r.key), binary.BigEndian.Uint64(r.key[9:])}
	return sum{of, crc32.Update(crc32.Checksum(r.key, castagnoli), castagnoli, r.value)}, nil
}

// appendBlock appends a block to buf: sums, at most blockSums, and the position in etcd's log up to which the store surely has everything.
func appendBlock(buf []byte, position uint64, sums []sum) []byte {
	order, head := binary.LittleEndian, len(buf)
	buf = order.AppendUint32(buf, checksumsMagic)
	buf = order.AppendUint32(buf, uint32(len(sums)))
	buf = order.AppendUint64(buf, position)
	buf = order.AppendUint64(buf, 0)
	for _, s := range sums {
		buf = order.AppendUint64(buf, s.main)
		buf = order.AppendUint32(buf, uint32(s.sub))
		buf = order.AppendUint32(buf, s.crc)
	}
	order.PutUint32(buf[head+16:], crc32.Checksum(buf[head:], castagnoli))
	return buf
}

// checksums are read from their beginning.
type checksums struct {
	from     io.Reader
	block    []byte // what is left of it
	position uint64 // the highest that was read
	newest   uint64 // main revision that was read
	cut      bool   // the rest was not whole
	ended    bool   // the last block that was read ends what somebody wrote down together
}

// openChecksums opens a file of checksums. One that is not there has none.
func openChecksums(name string) (_ *checksums, done func(), err error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return &checksums{from: eof{}}, func() {}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return &checksums{from: bufio.NewReaderSize(f, 1<<20)}, func() { f.Close() }, nil
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// next returns the next one, and whether there is one.
func (c *checksums) next() (sum, bool, error) {
	for len(c.block) == 0 {
		if whole, err := c.read(); err != nil || !whole {
			return sum{}, false, err
		}
	}
	order := binary.LittleEndian
	s := sum{revision{order.Uint64(c.block), uint64(order.Uint32(c.block[8:]))}, order.Uint32(c.block[12:])}
	c.block = c.block[sumSize:]
	c.newest = s.main
	return s, true, nil
}

// read reads the next block, if it is whole.
func (c *checksums) read() (bool, error) {
	if c.cut {
		return false, nil
	}
	head := make([]byte, blockHead)
	_, err := io.ReadFull(c.from, head)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	order := binary.LittleEndian
	count := order.Uint32(head[4:])
	c.cut = true
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return false, nil
	case err != nil:
		return false, err
	case order.Uint32(head) != checksumsMagic || count > blockSums:
		return false, nil
	}
	block := make([]byte, blockHead+int(count)*sumSize)
	copy(block, head)
	if _, err := io.ReadFull(c.from, block[blockHead:]); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	order.PutUint32(block[16:], 0)
	if crc32.Checksum(block, castagnoli) != order.Uint32(head[16:]) {
		return false, nil
	}
	c.cut = false
	c.position = max(c.position, order.Uint64(head[8:]))
	c.ended = count < blockSums
	c.block = block[blockHead:]
	return true, nil
}

// comparison compares rows, which come in their order, with what is known of them, up to the last one that is known.
type comparison struct {
	known *checksums
	// keep, if set, is told in their order the sums that are known from now on: what is damaged stays known as what it was.
	keep      func(sum) error
	next      sum
	has, done bool // there is a next; there is none
	damage    damage
}

// damage is what rows of a store are not as they were written.
type damage struct {
	rows  int
	first []string
}

// damageNamed is how many rows are named.
const damageNamed = 5

func (d *damage) add(format string, args ...any) {
	if d.rows++; d.rows <= damageNamed {
		d.first = append(d.first, fmt.Sprintf(format, args...))
	}
}

// upTo reads what is known of rows before a revision: which are gone, as they may be up to a compaction.
func (c *comparison) upTo(to revision, compacted uint64) error {
	for !c.done {
		if !c.has {
			var err error
			if c.next, c.has, err = c.known.next(); err != nil {
				return err
			}
			if c.done = !c.has; c.done {
				return nil
			}
		}
		if !c.next.before(to) {
			return nil
		}
		if c.next.main > compacted {
			c.damage.add("revision %d is gone", c.next.main)
			if err := c.keeps(c.next); err != nil {
				return err
			}
		}
		c.has = false
	}
	return nil
}

// rest reads what is known of rows that are not looked at. None of them counts as gone.
func (c *comparison) rest() error { return c.upTo(revision{main: math.MaxUint64}, math.MaxUint64) }

// row compares the next row.
func (c *comparison) row(r row, compacted uint64) error {
	is, err := sumOf(r)
	if err != nil {
		return err
	}
	if err := c.upTo(is.revision, compacted); err != nil {
		return err
	}
	switch {
	case c.done:
		return c.keeps(is) // newer than all that is known
	case c.next.revision != is.revision:
		c.damage.add("%s, whose revision %d nobody wrote", nameOf(r), is.main)
		return nil
	case c.next.crc != is.crc:
		c.damage.add("%s of revision %d", nameOf(r), is.main)
	}
	c.has = false
	return c.keeps(c.next)
}

func (c *comparison) keeps(s sum) error {
	if c.keep == nil {
		return nil
	}
	return c.keep(s)
}
