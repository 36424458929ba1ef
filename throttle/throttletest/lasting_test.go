package throttletest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A test that leaves keys which never expire fails, and hears which they are.
func TestKeysThatNeverExpireAreReported(t *testing.T) {
	t.Parallel()
	EachServer(t, func(t *testing.T, srv *Server) {
		ctx, client, tb := t.Context(), srv.Client(), &failingTB{TB: t}
		for key, life := range map[string]time.Duration{"mine": 0, "rm:{a}/line": time.Hour} {
			require.NoError(t, client.Set(ctx, key, "", life).Err())
		}
		reportLasting(tb, srv)
		assert.Empty(t, tb.errors)

		var want []string
		for i := range 450 { // more than are looked at at once
			key := fmt.Sprintf("rm:{a}:%04d", i)
			require.NoError(t, client.Set(ctx, key, "", time.Duration(i%200)*time.Hour).Err())
			if i%200 == 0 {
				want = append(want, key)
			}
		}
		keys, err := LastingKeys(ctx, client)
		require.NoError(t, err)
		assert.Equal(t, want, keys)
		reportLasting(tb, srv)
		assert.Equal(t, []string{`keys were left that never expire: ["rm:{a}:0000" "rm:{a}:0200" "rm:{a}:0400"]`}, tb.errors)
		require.NoError(t, client.Del(ctx, keys...).Err())
	})
}
