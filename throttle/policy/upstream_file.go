package policy

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"
)

// upstream reads the key: the name of an API, or a mapping.
func (f *configFile) upstream(it item) *Upstream {
	if resolve(it.node).Kind == yaml.ScalarNode {
		api := f.option(it)
		f.lines[join(it.path, "api")] = it.line
		return &Upstream{API: API(api)}
	}
	u := &Upstream{}
	for _, it := range f.mapping(it, "an upstream") {
		switch it.key {
		case "api":
			u.API = API(f.option(it))
		case "headroom":
			u.Headroom = f.whole(it, f.option(it), func(n int64) error {
				if n < 0 || n > MaxCount {
					return fmt.Errorf("the headroom is %d tokens, not from 0 to %d", n, MaxCount)
				}
				return nil
			})
		case "quotas":
			u.Quotas = map[string]string{}
			for _, quota := range f.entries(it, "a mapping from the upstream's names of quotas to limits") {
				u.Quotas[quota.key] = f.option(quota)
			}
		case "max_freeze":
			u.MaxFreeze = f.duration(it, f.option(it), func(d time.Duration) error {
				if d <= 0 || d > MaxMaxFreeze {
					return fmt.Errorf("%s is not a time from above 0s to %s", quote(d.String()), MaxMaxFreeze)
				}
				return nil
			})
		}
	}
	return u
}
