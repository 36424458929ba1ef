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

	nodes := make([]*Server, clusterNodes)
	buses := make([]int, clusterNodes)
	for i := range nodes {
		bus, err := freePort(ctx)
		if err != nil {
			tb.Fatal(err)
		}
		buses[i] = bus
		nodes[i] = Redis(tb, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus))
	}
	if err := join(ctx, nodes, buses); err != nil {
		tb.Fatal(err)
	}
	addresses := make([]string, clusterNodes)
	for i, node := range nodes {
		addresses[i] = node.Addr()
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})
	tb.Cleanup(func() {
		if err := client.Close(); err != nil {
			tb.Errorf("close cluster client: %v", err)
		}
	})
	return client
}

// join makes a cluster of the nodes, each with a third of the slots, and returns
// when all of them agree that it is up.
func join(ctx context.Context, nodes []*Server, buses []int) error {
	for i, node := range nodes {
		first, last := i*clusterSlots/len(nodes), (i+1)*clusterSlots/len(nodes)-1
		if err := node.client.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
			return fmt.Errorf("give slots %d-%d to %s: %w", first, last, node.addr, err)
		}
		host, port, err := net.SplitHostPort(node.addr)
		if err != nil {
			return err
		}
		if err := nodes[0].client.Do(ctx, "CLUSTER", "MEET", host, port, buses[i]).Err(); err != nil {
			return fmt.Errorf("let %s meet %s: %w", nodes[0].addr, node.addr, err)
		}
	}
	for _, node := range nodes {
		if err := awaitCluster(ctx, node); err != nil {
			return err
		}
	}
	return nil
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
