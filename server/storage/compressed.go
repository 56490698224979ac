package storage

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

const (
	// compressFrom is how many bytes a value has that is compressed: etcd keeps values in pages of 4 KiB, and two to a page are not worth it.
	compressFrom = 2 << 10
	// compressTo is the longest value that is compressed. It is what etcd takes in a request: a longer one is refused, as it is without.
	compressTo = 3 << 19
	// compressWindow is how far back the compressor looks for what it has seen, which is its memory, too.
	compressWindow = 256 << 10
	// coders is how many values are compressed at once, and as many decompressed: others wait some microseconds. Each keeps its memory.
	coders = 2
)

// compressedPrefix begins every value that is compressed: zstd's magic number. JSON begins with a brace, Protobuf and what is encrypted
// with "k8s".
var compressedPrefix = []byte{0x28, 0xb5, 0x2f, 0xfd}

func isCompressed(row []byte) bool { return bytes.HasPrefix(row, compressedPrefix) }

// compressor and decompressor are safe for any number of goroutines. Their options are constants, of which none is wrong.
var (
	compressor = sync.OnceValue(func() *zstd.Encoder {
		return must(zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(compressWindow),
			zstd.WithEncoderConcurrency(coders), zstd.WithLowerEncoderMem(true)))
	})
	decompressor = sync.OnceValue(func() *zstd.Decoder {
		return must(zstd.NewReader(nil, zstd.WithDecoderConcurrency(coders), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(compressTo)))
	})
)

func must[T any](made T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("make what compresses rows: %v", err))
	}
	return made
}

// plainSize is how many bytes a value has before it was compressed. It is what a value counts for: the server has that in memory, and so
// nobody gets more of it by writing what compresses well.
func plainSize(row []byte) int {
	if !isCompressed(row) {
		return len(row)
	}
	var h zstd.Header
	if err := h.Decode(row[:min(len(row), zstd.HeaderMaxSize)]); err != nil || !h.HasFCS || h.FrameContentSize > compressTo {
		return len(row) // nothing that this wrote
	}
	return int(h.FrameContentSize)
}

// isLarge says of which resource long values are compressed: of definitions, which are as long as any object is, and of which thousands of
// logical clusters have the same.
func isLarge(gr schema.GroupResource) bool {
	return gr == definitionsResource
}

// Compress has long CustomResourceDefinitions written compressed from now on. It is for who knows that every server of this etcd reads
// them: this version does, also where it does not write them.
func (b *Backend) Compress() { b.compress.Store(true) }

// transformerOf is what values of a resource pass through before they are in etcd.
func (b *Backend) transformerOf(gr schema.GroupResource) value.Transformer {
	stored := identity.NewEncryptCheckTransformer()
	if b.transform != nil {
		stored = b.transform.TransformerForResource(gr)
	}
	if isLarge(gr) {
		stored = &compressing{inner: stored, on: &b.compress}
	}
	return stored
}

// compressing is a transformer that compresses long values for inner, which stores them in plain. What inner encrypts is not compressed:
// its length would tell of what is in it.
//
// Values that are compressed are read whether or not any are written. One that is compressed and encrypted, as versions before wrote those anew which
// were compressed when encryption was switched on, is read, too, and stale.
type compressing struct {
	inner value.Transformer
	// on says whether values are written so.
	on *atomic.Bool
}

func (c *compressing) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	plain, stale, err := c.inner.TransformFromStorage(ctx, data, dataCtx)
	if err != nil || !isCompressed(plain) {
		return plain, stale, err
	}
	if plain, err = decompressor().DecodeAll(plain, nil); err != nil {
		return nil, false, fmt.Errorf("decompress %s: %w", dataCtx.AuthenticatedData(), err)
	}
	return plain, stale || isEncrypted(data), nil
}

func (c *compressing) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	row, err := c.inner.TransformToStorage(ctx, data, dataCtx)
	if err != nil || !c.on.Load() || len(row) < compressFrom || len(row) > compressTo || isEncrypted(row) {
		return row, err
	}
	if shorter := compressor().EncodeAll(row, nil); len(shorter) < len(row) {
		return shorter, nil
	}
	return row, nil
}
