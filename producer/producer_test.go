package producer_test

import (
	"testing"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

func connection(srv *throttletest.Server) asynq.RedisClientOpt {
	return asynq.RedisClientOpt{Addr: srv.Addr()}
}

// producerOn returns a producer that ends with the test, and before srv does.
func producerOn(t *testing.T, srv *throttletest.Server) *producer.Producer {
	t.Helper()
	p, err := producer.New(connection(srv))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

func inspectorOn(srv *throttletest.Server) *asynq.Inspector {
	return asynq.NewInspectorFromRedisClient(srv.Client())
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		p := producerOn(t, srv)
		sent, err := p.HTTP(t.Context(), httprequest.Payload{URL: "http://h/x"},
			map[string]string{"installation": "42"}, asynq.Queue("calls"), asynq.MaxRetry(3))
		require.NoError(t, err)

		info, err := inspectorOn(srv).GetTaskInfo("calls", sent.ID)
		require.NoError(t, err)
		assert.Equal(t, httprequest.TaskType, info.Type)
		assert.Equal(t, map[string]string{"installation": "42"}, info.Headers)
		assert.Equal(t, 3, info.MaxRetry)
		payload, err := httprequest.Decode(info.Payload)
		require.NoError(t, err)
		assert.Equal(t, httprequest.Payload{Method: "GET", URL: "http://h/x"}, payload)

		_, err = p.HTTP(t.Context(), httprequest.Payload{URL: "h/x"}, nil)
		require.ErrorIs(t, err, httprequest.ErrInvalid)
	})
}

func TestFromClientLeavesTheClientOpen(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	client := asynq.NewClientFromRedisClient(srv.Client())
	p := producer.FromClient(client)
	require.NoError(t, p.Close())
	_, err := p.HTTP(t.Context(), httprequest.Payload{URL: "http://h"}, nil)
	require.NoError(t, err)
}

func TestNewRefusesWhatIsNoRedis(t *testing.T) {
	t.Parallel()
	_, err := producer.New(noRedis{})
	require.ErrorContains(t, err, "unsupported asynq.RedisConnOpt producer_test.noRedis")
}

type noRedis struct{}

func (noRedis) MakeRedisClient() any { return "no client" }
