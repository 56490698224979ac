package storage

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// firstPage to maxPage is how many rows are read at once, by the size of the rows before: about pageBytes. etcd tells no
	// sizes without the values, so where small rows are followed by the largest one page has all of these, some 100 MB.
	firstPage = 16
	minPage   = 4
	maxPage   = 64
	pageBytes = 4 << 20
)

// pages reads a range page by page, each as it is then unless options say otherwise.
type pages struct {
	kv        clientv3.KV
	from, end string
	options   []clientv3.OpOption
	limit     int64
	done      bool
}

// pagesOf reads the rows below prefix; those after a row, if its key is given.
func (b *Backend) pagesOf(prefix, after string, options ...clientv3.OpOption) *pages {
	p := &pages{kv: b.client, from: prefix, end: clientv3.GetPrefixRangeEnd(prefix), options: options, limit: firstPage}
	if after != "" {
		p.from = after + "\x00"
	}
	return p
}

// next returns the next page, which may be empty if it is the last.
func (p *pages) next(ctx context.Context) (*clientv3.GetResponse, error) {
	options := append([]clientv3.OpOption{clientv3.WithRange(p.end), clientv3.WithLimit(p.limit)}, p.options...)
	got, err := p.kv.Get(ctx, p.from, options...)
	if err != nil {
		return nil, err
	}
	if len(got.Kvs) == 0 || !got.More {
		p.done = true
		return got, nil
	}
	p.from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	var bytes int64
	for _, kv := range got.Kvs {
		bytes += sizeOf(string(kv.Key), kv.Value)
	}
	p.limit = nextPage(p.limit, int64(len(got.Kvs)), bytes)
	return got, nil
}

// nextPage is how many rows to read after a page that was to have so many, and had these: what fits by their size, at most
// twice as many as before.
func nextPage(limit, rows, bytes int64) int64 {
	return max(min(pageBytes*rows/bytes, 2*limit, maxPage), minPage)
}
