package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"sort"
	"sync"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Task is what a member of a consumer group is told; see ../groups.py.
type Task struct {
	Bootstrap string   `json:"bootstrap"`
	Group     string   `json:"group"`
	Topics    []string `json:"topics"`
	SessionMs int      `json:"session_ms"`
	Strategy  string   `json:"strategy"`
	Instance  string   `json:"instance"`
	Protocol  string   `json:"protocol"`
}

var saying sync.Mutex

// say prints what happened as a line of JSON, as ../group_worker.py does.
func say(event string, more map[string]any) {
	saying.Lock()
	defer saying.Unlock()
	line := map[string]any{"event": event}
	for name, value := range more {
		line[name] = value
	}
	json.NewEncoder(os.Stdout).Encode(line)
}

func sayPartitions(event string, assigned map[string][]int32) {
	rows := [][2]any{}
	for topic, partitions := range assigned {
		for _, partition := range partitions {
			rows = append(rows, [2]any{topic, partition})
		}
	}
	sort.Slice(rows, func(i, j int) bool { return rows[i][1].(int32) < rows[j][1].(int32) })
	say(event, map[string]any{"partitions": rows})
}

func sayRecord(partition int32, offset int64, value []byte) {
	say("record", map[string]any{"partition": partition, "offset": offset, "value": string(value)})
}

// runGroup is a member until SIGTERM.
func runGroup(name string, data string) error {
	task := Task{Strategy: "range"}
	if err := json.Unmarshal([]byte(data), &task); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	member := franzMember
	if name == "sarama-group" {
		member = saramaMember
	}
	if err := member(ctx, task); err != nil {
		say("error", map[string]any{"text": err.Error()})
		return err
	}
	say("closed", nil)
	return nil
}

func franzMember(ctx context.Context, task Task) error {
	assigned := func(_ context.Context, _ *kgo.Client, now map[string][]int32) {
		sayPartitions("assigned", now)
	}
	revoked := func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
		if len(gone) > 0 { // a cooperative member is called at every rebalance
			sayPartitions("revoked", gone)
		}
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(task.Bootstrap),
		kgo.ConsumerGroup(task.Group),
		kgo.ConsumeTopics(task.Topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(time.Duration(task.SessionMs) * time.Millisecond),
		kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.FetchMaxWait(200 * time.Millisecond),
		kgo.OnPartitionsAssigned(assigned),
		kgo.OnPartitionsRevoked(revoked),
		kgo.OnPartitionsLost(revoked),
	}
	switch {
	case task.Protocol == "consumer":
		options = append(options, kgo.ServerSideBalancer())
	case task.Strategy == "cooperative":
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	default:
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	}
	if task.Instance != "" {
		options = append(options, kgo.InstanceID(task.Instance))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			if errors.Is(failed.Err, kerr.FencedInstanceID) {
				return failed.Err
			}
			if ctx.Err() == nil {
				say("error", map[string]any{"text": failed.Err.Error()})
			}
		}
		for _, record := range fetches.Records() {
			if err := client.CommitRecords(ctx, record); err != nil {
				say("error", map[string]any{"text": err.Error()})
				break
			}
			sayRecord(record.Partition, record.Offset, record.Value)
		}
	}
	return nil
}

// saramaHandler is called back by sarama for every generation.
type saramaHandler struct{}

func (saramaHandler) Setup(session sarama.ConsumerGroupSession) error {
	sayPartitions("assigned", session.Claims())
	return nil
}

func (saramaHandler) Cleanup(session sarama.ConsumerGroupSession) error {
	sayPartitions("revoked", session.Claims())
	return nil
}

func (saramaHandler) ConsumeClaim(
	session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim,
) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			session.MarkMessage(message, "")
			session.Commit()
			sayRecord(message.Partition, message.Offset, message.Value)
		case <-session.Context().Done():
			return nil
		}
	}
}

func saramaMember(ctx context.Context, task Task) error {
	config := config()
	config.Consumer.MaxWaitTime = 200 * time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = time.Duration(task.SessionMs) * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	config.Consumer.Group.InstanceId = task.Instance
	group, err := sarama.NewConsumerGroup([]string{task.Bootstrap}, task.Group, config)
	if err != nil {
		return err
	}
	for ctx.Err() == nil { // a generation each
		if err := group.Consume(ctx, task.Topics, saramaHandler{}); err != nil && ctx.Err() == nil {
			say("error", map[string]any{"text": err.Error()})
		}
	}
	return group.Close()
}
