package lua

import (
	"reflect"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A server keeps the text of every script for good.
func TestScriptsAreSmall(t *testing.T) {
	t.Parallel()
	scripts, size := reflect.ValueOf(New()), 0
	for i := range scripts.NumField() {
		script, ok := scripts.Field(i).Interface().(*redis.Script)
		require.True(t, ok)
		size += reflect.ValueOf(script).Elem().FieldByName("src").Len()
	}
	assert.Less(t, size, 150_000, "bytes in all")
	assert.Greater(t, size, 50_000, "else this does not see them")
}

func TestStrip(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "local a = 1 -- not alone\nreturn '--'\n", strip("-- why\n\n  local a = 1 -- not alone\n\t--[x]\n  return '--'\n"))
}
