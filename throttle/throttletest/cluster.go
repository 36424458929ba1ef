package throttletest

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterNodes = 3
	clusterSlots = 16384
)

// Cluster starts a Redis Cluster of three nodes for one test, which ends with the
// test, and returns a client of it. Without a redis-server it does as Redis does.
func Cluster(tb testing.TB) *redis.ClusterClient {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()

	must := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	nodes, addresses := make([]*Server, clusterNodes), make([]string, clusterNodes)
	for i := range nodes {
		bus, err := freePort(ctx)
		must(err)
		node := Redis(tb, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus))
		nodes[i], addresses[i] = node, node.addr
		// Each has a third of the slots, and the first one knows them all.
		first, last := i*clusterSlots/clusterNodes, (i+1)*clusterSlots/clusterNodes-1
		must(node.client.ClusterAddSlotsRange(ctx, first, last).Err())
		host, port, err := net.SplitHostPort(node.addr)
		must(err)
		must(nodes[0].client.Do(ctx, "CLUSTER", "MEET", host, port, bus).Err())
	}
	for _, node := range nodes {
		must(awaitCluster(ctx, node))
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})
	tb.Cleanup(func() {
		if err := client.Close(); err != nil {
			tb.Errorf("close cluster client: %v", err)
		}
	})
	return client
}

// awaitCluster returns when a node knows all others and has a slot for every key.
func awaitCluster(ctx context.Context, node *Server) error {
	ask := time.NewTicker(20 * time.Millisecond)
	defer ask.Stop()
	for {
		shards, err := node.client.ClusterShards(ctx).Result()
		info, infoErr := node.client.ClusterInfo(ctx).Result()
		if err == nil && infoErr == nil && len(shards) == clusterNodes && strings.Contains(info, "cluster_state:ok") {
			return nil
		}
		select {
		case <-ask.C:
		case <-ctx.Done():
			return fmt.Errorf("no cluster at %s: %w; it said:\n%s", node.addr, ctx.Err(), info)
		}
	}
}
