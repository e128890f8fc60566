// What an administrator does with franz-go's kadm, against the broker that KGO_SEEDS names. The
// tests of the package itself need no broker.
package admin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	timeout            = 30 * time.Second
	upgrade       int8 = 1
	safeDowngrade int8 = 2
)

// connect returns a client, its administrator, and a topic of two partitions with `records` records
// in the first.
func connect(t *testing.T, records int, opts ...kgo.Opt) (context.Context, *kgo.Client, *kadm.Client, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	seeds := kgo.SeedBrokers(strings.Split(os.Getenv("KGO_SEEDS"), ",")...)
	opts = append(opts, seeds, kgo.MetadataMinAge(10*time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	client, err := kgo.NewClient(opts...)
	check(t, err)
	admin := kadm.NewClient(client)
	t.Cleanup(func() { client.Close(); cancel() })
	topic := strings.ToLower(t.Name())
	_, err = admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": kadm.StringPtr("-1")}, topic)
	check(t, err)
	for i := range records {
		record := &kgo.Record{Topic: topic, Value: fmt.Append(nil, i), Timestamp: time.UnixMilli(int64(1000 * i))}
		check(t, client.ProduceSync(ctx, record).FirstErr())
	}
	return ctx, client, admin, topic
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func offsetOf(t *testing.T, listed kadm.ListedOffsets, err error, topic string) int64 {
	t.Helper()
	check(t, err)
	check(t, listed.Error())
	found, ok := listed.Lookup(topic, 0)
	equal(t, ok, true)
	return found.Offset
}

func TestTopics(t *testing.T) {
	ctx, _, admin, topic := connect(t, 0)
	topics, err := admin.ListTopics(ctx, topic)
	check(t, err)
	equal(t, len(topics[topic].Partitions), 2)
	grown, err := admin.CreatePartitions(ctx, 1, topic)
	check(t, err)
	check(t, grown.Error())
	grown, err = admin.UpdatePartitions(ctx, 5, topic)
	check(t, err)
	check(t, grown.Error())
	topics, err = admin.ListTopics(ctx, topic)
	check(t, err)
	equal(t, len(topics[topic].Partitions), 5)
	_, err = admin.CreateTopic(ctx, 1, 1, nil, topic)
	equal(t, errors.Is(err, kerr.TopicAlreadyExists), true)
	_, err = admin.DeleteTopic(ctx, topic)
	check(t, err)
	for isThere := true; isThere; { // The client keeps what it knew for a moment.
		topics, err = admin.ListTopics(ctx, topic)
		check(t, err)
		isThere = !errors.Is(topics[topic].Err, kerr.UnknownTopicOrPartition)
	}
}

func TestConfigs(t *testing.T) {
	ctx, _, admin, topic := connect(t, 0)
	read := func(key string) string {
		described, err := admin.DescribeTopicConfigs(ctx, topic)
		check(t, err)
		config, err := described.On(topic, nil)
		check(t, err)
		for _, each := range config.Configs {
			if each.Key == key {
				return each.MaybeValue()
			}
		}
		return "absent"
	}
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "retention.bytes", Value: kadm.StringPtr("77")},
		{Op: kadm.AppendConfig, Name: "cleanup.policy", Value: kadm.StringPtr("compact")},
	}, topic)
	check(t, err)
	check(t, altered[0].Err)
	equal(t, read("retention.bytes"), "77")
	equal(t, read("cleanup.policy"), "delete,compact")
	state, err := admin.AlterTopicConfigsState(ctx, []kadm.AlterConfig{{Name: "segment.ms", Value: kadm.StringPtr("9")}}, topic)
	check(t, err)
	check(t, state[0].Err)
	equal(t, read("retention.bytes"), "-1")
	equal(t, read("segment.ms"), "9")
	brokers, err := admin.DescribeBrokerConfigs(ctx, 1)
	check(t, err)
	check(t, brokers[0].Err)
	listed, err := admin.ListConfigResources(ctx)
	check(t, err)
	check(t, listed.Err)
	equal(t, len(listed.Resources) > 0, true)
}

func TestOffsets(t *testing.T) {
	ctx, _, admin, topic := connect(t, 10)
	start, err := admin.ListStartOffsets(ctx, topic)
	equal(t, offsetOf(t, start, err, topic), 0)
	end, err := admin.ListEndOffsets(ctx, topic)
	equal(t, offsetOf(t, end, err, topic), 10)
	stable, err := admin.ListCommittedOffsets(ctx, topic)
	equal(t, offsetOf(t, stable, err, topic), 10)
	largest, err := admin.ListMaxTimestampOffsets(ctx, topic)
	equal(t, offsetOf(t, largest, err, topic), 9)
	local, err := admin.ListLocalLogStartOffsets(ctx, topic)
	equal(t, offsetOf(t, local, err, topic), 0)
	remote, err := admin.ListLatestRemoteOffsets(ctx, topic)
	equal(t, offsetOf(t, remote, err, topic), -1)
	after, err := admin.ListOffsetsAfterMilli(ctx, 3500, topic)
	equal(t, offsetOf(t, after, err, topic), 4)
	var cut kadm.Offsets
	cut.AddOffset(topic, 0, 6, -1)
	deleted, err := admin.DeleteRecords(ctx, cut)
	check(t, err)
	check(t, deleted.Error())
	start, err = admin.ListStartOffsets(ctx, topic)
	equal(t, offsetOf(t, start, err, topic), 6)
}

func TestLeaderEpochs(t *testing.T) {
	ctx, _, admin, topic := connect(t, 3)
	var asked kadm.OffsetForLeaderEpochRequest
	asked.Add(topic, 0, 0)
	found, err := admin.OffsetForLeaderEpoch(ctx, asked)
	check(t, err)
	equal(t, found[topic][0].EndOffset, 3)
	elected, err := admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, kadm.TopicsSet{topic: {0: {}}})
	check(t, err)
	equal(t, errors.Is(elected[topic][0].Err, kerr.ElectionNotNeeded), true)
	moving, err := admin.ListPartitionReassignments(ctx, nil)
	check(t, err)
	equal(t, len(moving), 0)
}

func TestGroups(t *testing.T) {
	ctx, _, admin, topic := connect(t, 10)
	group := "group-of-" + topic
	var offsets kadm.Offsets
	offsets.AddOffset(topic, 0, 4, -1)
	check(t, admin.CommitAllOffsets(ctx, group, offsets))
	fetched, err := admin.FetchOffsets(ctx, group)
	check(t, err)
	check(t, fetched.Error())
	equal(t, fetched[topic][0].At, 4)
	lags, err := admin.Lag(ctx, group)
	check(t, err)
	equal(t, lags[group].Lag.Total() >= 6, true)
	listed, err := admin.ListGroups(ctx)
	check(t, err)
	equal(t, listed[group].State, "Empty")
	described, err := admin.DescribeGroups(ctx, group)
	check(t, err)
	check(t, described.Error())
	many := admin.FetchManyOffsets(ctx, group)
	check(t, many.Error())
	forgotten, err := admin.DeleteOffsets(ctx, group, kadm.TopicsSet{topic: {0: {}}})
	check(t, err)
	check(t, forgotten.Error())
	_, err = admin.DeleteGroup(ctx, group)
	check(t, err)
	listed, err = admin.ListGroups(ctx)
	check(t, err)
	_, left := listed[group]
	equal(t, left, false)
}

func TestModernGroups(t *testing.T) {
	ctx, _, admin, topic := connect(t, 3)
	group := "modern-of-" + topic
	member, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KGO_SEEDS"), ",")...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.ServerSideBalancer(),
	)
	check(t, err)
	defer member.Close()
	for got := 0; got < 3; {
		fetches := member.PollFetches(ctx)
		check(t, fetches.Err())
		got += fetches.NumRecords()
	}
	check(t, member.CommitUncommittedOffsets(ctx))
	described, err := admin.DescribeConsumerGroups(ctx, group)
	check(t, err)
	equal(t, described[group].Err, nil)
	equal(t, len(described[group].Members), 1)
	byType, err := admin.ListGroupsByType(ctx, []string{"consumer"})
	check(t, err)
	_, isListed := byType[group]
	equal(t, isListed, true)
	ids, err := admin.FetchOffsetsByID(ctx, group)
	check(t, err)
	equal(t, len(ids), 1)
}

func TestTransactions(t *testing.T) {
	ctx, client, admin, topic := connect(t, 0, kgo.TransactionalID("of-kadm"))
	check(t, client.BeginTransaction())
	check(t, client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("open")}).FirstErr())
	listed, err := admin.ListTransactions(ctx, nil, []string{"Ongoing"})
	check(t, err)
	equal(t, listed["of-kadm"].State, "Ongoing")
	byPattern, err := admin.ListTransactionsByTxPattern(ctx, nil, nil, "of-k.*")
	check(t, err)
	equal(t, len(byPattern), 1)
	described, err := admin.DescribeTransactions(ctx, "of-kadm")
	check(t, err)
	check(t, described["of-kadm"].Err)
	producers, err := admin.DescribeProducers(ctx, kadm.TopicsSet{topic: {0: {}}})
	check(t, err)
	equal(t, len(producers[topic].Partitions[0].ActiveProducers), 1)
	check(t, client.EndTransaction(ctx, kgo.TryAbort))
	stable, err := admin.ListCommittedOffsets(ctx, topic)
	equal(t, offsetOf(t, stable, err, topic), 2)
}

func TestCluster(t *testing.T) {
	ctx, _, admin, topic := connect(t, 5)
	brokers, err := admin.ListBrokers(ctx)
	check(t, err)
	equal(t, len(brokers), 1)
	metadata, err := admin.BrokerMetadata(ctx)
	check(t, err)
	equal(t, metadata.Controller, 1)
	versions, err := admin.ApiVersions(ctx)
	check(t, err)
	check(t, versions[1].Err)
	groups := admin.FindGroupCoordinators(ctx, "a", "b")
	check(t, groups.Error())
	transactions := admin.FindTxnCoordinators(ctx, "a")
	check(t, transactions.Error())
	dirs, err := admin.DescribeAllLogDirs(ctx, kadm.TopicsSet{topic: {0: {}}})
	check(t, err)
	size := int64(0)
	dirs.Each(func(dir kadm.DescribedLogDir) { size += dir.Size() })
	equal(t, size > 0, true)
}

func TestFeatures(t *testing.T) {
	ctx, _, admin, _ := connect(t, 0)
	to := func(level int16, how int8) error {
		updated, err := admin.UpdateFeatures(ctx, false, kadm.FeatureUpdate{Feature: "transaction.version", MaxVersionLevel: level, UpgradeType: how})
		if err != nil {
			return err
		}
		return updated.Error()
	}
	check(t, to(1, safeDowngrade))
	check(t, to(2, upgrade))
	equal(t, to(99, upgrade) != nil, true)
}

func TestQuotas(t *testing.T) {
	ctx, _, admin, _ := connect(t, 0)
	name := kadm.StringPtr("of-kadm")
	entity := kadm.ClientQuotaEntity{{Type: "client-id", Name: name}}
	set := func(op kadm.AlterClientQuotaOp) {
		altered, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{Entity: entity, Ops: []kadm.AlterClientQuotaOp{op}}})
		check(t, err)
		check(t, altered[0].Err)
	}
	set(kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Value: 1 << 40})
	described, err := admin.DescribeClientQuotas(ctx, true, []kadm.DescribeClientQuotaComponent{{Type: "client-id", MatchType: 0, MatchName: name}})
	check(t, err)
	equal(t, len(described), 1)
	equal(t, described[0].Values[0].Value, 1<<40)
	set(kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Remove: true})
}

func TestACLsAreDisabled(t *testing.T) {
	ctx, _, admin, _ := connect(t, 0)
	any := kadm.NewACLs().AnyResource().Operations().ResourcePatternType(kadm.ACLPatternAny).Allow().AllowHosts().Deny().DenyHosts()
	described, err := admin.DescribeACLs(ctx, any)
	check(t, err)
	for _, each := range described {
		equal(t, errors.Is(each.Err, kerr.SecurityDisabled), true)
	}
}

func TestVersionIsGuessedFromTheAPIs(t *testing.T) {
	ctx, _, admin, _ := connect(t, 0)
	versions, err := admin.ApiVersions(ctx)
	check(t, err)
	versions.Each(func(broker kadm.BrokerApiVersions) {
		check(t, broker.Err)
		equal(t, broker.VersionGuess(), "v4.3")
	})
	equal(t, len(versions), 1)
}
