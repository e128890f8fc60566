// A member of a group, which writes "PARTITION OFFSET" of each record that it reads to a file, and then
// commits. Arguments: bootstrap servers, topic, group, the file. Ends when its standard input does.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	servers, topic, group, path := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(servers, ",")...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	)
	if err != nil {
		panic(err)
	}
	out := bufio.NewWriter(file)
	isCommitted := true
	for ctx.Err() == nil {
		polling, stop := context.WithTimeout(ctx, time.Second)
		fetches := client.PollRecords(polling, 500)
		stop()
		fetches.EachError(func(topic string, partition int32, err error) {
			if polling.Err() == nil {
				fmt.Fprintln(os.Stderr, "fetch:", topic, partition, err)
			}
		})
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Fprintln(out, record.Partition, record.Offset)
		})
		out.Flush()
		if fetches.NumRecords() > 0 || !isCommitted {
			err := client.CommitUncommittedOffsets(ctx)
			isCommitted = err == nil
			if err != nil {
				fmt.Fprintln(os.Stderr, "commit:", err)
			}
		}
		client.AllowRebalance()
	}
	client.Close()
}
