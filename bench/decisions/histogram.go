package decisions

import (
	"math"
	"math/bits"
	"time"
)

// histogram counts latencies in buckets that are at most 1/64 wide, so that
// recording one costs nothing that would be measured. The zero value is empty.
type histogram struct {
	counts [(64 - subBits) << subBits]uint32
	total  int
}

// Each power of two is split into 2^subBits buckets.
const subBits = 6

func (h *histogram) record(d time.Duration) {
	h.counts[bucketOf(d)]++
	h.total++
}

func (h *histogram) add(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.total += other.total
}

// percentile returns the latency that p percent of those recorded do not exceed,
// to the width of its bucket, and 0 when there are none.
func (h *histogram) percentile(p float64) time.Duration {
	rank := max(1, int(math.Ceil(float64(h.total)*p/100)))
	for i, n := range h.counts {
		rank -= int(n)
		if rank <= 0 && n > 0 {
			return topOf(i)
		}
	}
	return 0
}

// bucketOf numbers the buckets: below 2^subBits nanoseconds each has one of its
// own; above, the leading bits choose.
func bucketOf(d time.Duration) int {
	ns := uint64(max(0, d))
	shift := max(0, bits.Len64(ns)-subBits-1)
	return shift<<subBits + int(ns>>shift)
}

// topOf is the longest latency of a bucket.
func topOf(bucket int) time.Duration {
	if bucket < 2<<subBits {
		return time.Duration(bucket)
	}
	shift := bucket>>subBits - 1
	return time.Duration((bucket-shift<<subBits+1)<<shift - 1)
}
