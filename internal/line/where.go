package line

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Spot is where a task stands.
type Spot struct {
	// Position counts from 1 in the task's row.
	Position int64
	// Since is what the task stands by.
	Since time.Time
	// Woken tells that its turn has come.
	Woken bool
	// Asked is how often it has asked for its start.
	Asked int64
	// Rows and Tasks are how many there are in the line.
	Rows, Tasks int64
}

// Find returns where a task stands, or nil if it is not in line.
func (l *Line) Find(ctx context.Context, task Task) (*Spot, error) {
	row, member := l.row(task), task.member()
	name := task.name(row)
	pipe := l.redis.Pipeline()
	woken := pipe.ZScore(ctx, l.woken(), name)
	late := pipe.ZScore(ctx, l.Key+"/late", name)
	place := pipe.ZScore(ctx, l.Key+"/row:"+row, member)
	rank := pipe.ZRank(ctx, l.Key+"/row:"+row, member)
	rows := pipe.HLen(ctx, l.Key+"/cursors")
	state := pipe.Get(ctx, l.Key)
	again := pipe.HGet(ctx, l.Key+"/asked", member)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, l.wrap("where", err)
	}
	if errors.Is(place.Err(), redis.Nil) {
		return nil, nil
	}
	s := &Spot{
		Position: rank.Val() + 1, Since: time.UnixMicro(int64(place.Val())),
		Woken: woken.Err() == nil || late.Err() == nil, Asked: 1, Rows: rows.Val(),
	}
	if s.Woken {
		s.Position = 1
	}
	if n, err := again.Int64(); err == nil {
		s.Asked += n
	}
	if fields := strings.Split(state.Val(), ","); len(fields) > 1 {
		s.Tasks, _ = strconv.ParseInt(fields[1], 10, 64)
	}
	return s, nil
}
