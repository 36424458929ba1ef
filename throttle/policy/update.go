package policy

import "fmt"

// ValidateUpdate checks that the limits of next can read what those of the same name have
// counted so far under c. It returns nil or a *ConfigError; next must be valid.
func (c *Config) ValidateUpdate(next *Config) error {
	var problems []Problem
	for i := range next.Policies {
		policy := &next.Policies[i]
		before := c.Policy(policy.Name)
		if before == nil {
			continue
		}
		for n := range policy.Limits {
			limit := &policy.Limits[n]
			was := before.Limit(limit.Name)
			if was == nil || was.Kind() == limit.Kind() {
				continue
			}
			problems = append(problems, Problem{
				Path: join(index(join(join("policies", policy.Name), "limits"), n), "algorithm"),
				Message: fmt.Sprintf("what %s has counted as a %s can not be read as a %s; give the limit another name, under which it begins anew",
					quote(limit.Name), was.Kind(), limit.Kind()),
			})
		}
	}
	if len(problems) > 0 {
		return &ConfigError{Problems: problems}
	}
	return nil
}
