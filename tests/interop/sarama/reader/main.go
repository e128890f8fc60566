// A member of a group, which writes "PARTITION OFFSET" of each record that it reads to a file. Arguments:
// bootstrap servers, topic, group, the file. Ends when its standard input does.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/IBM/sarama"
)

type reader struct {
	lock sync.Mutex
	out  io.Writer
}

func (r *reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		r.lock.Lock()
		fmt.Fprintln(r.out, message.Partition, message.Offset)
		r.lock.Unlock()
		session.MarkMessage(message, "")
	}
	return nil
}

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
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Return.Errors = true
	client, err := sarama.NewConsumerGroup(strings.Split(servers, ","), group, config)
	if err != nil {
		panic(err)
	}
	go func() {
		for err := range client.Errors() {
			fmt.Fprintln(os.Stderr, "error:", err)
		}
	}()
	handler := &reader{out: file}
	for ctx.Err() == nil {
		if err := client.Consume(ctx, []string{topic}, handler); err != nil {
			fmt.Fprintln(os.Stderr, "consume:", err)
		}
	}
	if err := client.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "close:", err)
	}
}
