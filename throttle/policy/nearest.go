package policy

import "strings"

// nearest returns the candidate that word is probably a slip of, or "".
func nearest(word string, candidates []string) string {
	plain := func(s string) string {
		return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s))
	}
	best, least := "", 3 // two slips are near, three make another word
	for _, candidate := range candidates {
		d := slips(plain(word), plain(candidate), least)
		if d < least && 2*d <= len(candidate) {
			best, least = candidate, d
		}
	}
	return best
}

// slips counts the letters to add, drop, change or swap with their neighbour to
// get from a to b. It does not count beyond enough.
func slips(a, b string, enough int) int {
	if max(len(a)-len(b), len(b)-len(a)) >= enough {
		return enough
	}
	// before[j] and row[j] are the slips from a's first i-1 and i letters to b's
	// first j; last is the row before those.
	var last, before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		last, before, row = before, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			row[j] = min(before[j], row[j-1]) + 1
			if a[i-1] == b[j-1] {
				row[j] = min(row[j], before[j-1])
			} else {
				row[j] = min(row[j], before[j-1]+1)
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], last[j-2]+1)
			}
		}
	}
	return min(row[len(b)], enough)
}
