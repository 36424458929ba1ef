package harness

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"strings"
)

// ParseFlags sets flags from their environment variables and then from args, which
// win. It returns the names of those that were set.
func ParseFlags(flags *flag.FlagSet, args []string, getenv func(string) string) (given map[string]bool, err error) {
	given = map[string]bool{}
	var errs []error
	flags.VisitAll(func(f *flag.Flag) {
		name := variable(f.Name)
		if text := getenv(name); text != "" {
			given[f.Name] = true
			if err := flags.Set(f.Name, text); err != nil {
				errs = append(errs, fmt.Errorf("%s=%q: %w", name, text, err))
			}
		}
	})
	if err := cmp.Or(errors.Join(errs...), flags.Parse(args)); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("there is nothing to do with %q", flags.Arg(0))
	}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return given, nil
}

// variable is the environment variable that stands for a flag.
func variable(name string) string {
	return "RAMPMETER_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
