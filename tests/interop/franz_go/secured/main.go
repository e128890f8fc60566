// Writes a record to a secured broker and reads it again, for each configuration on standard input: a JSON
// array. Prints the kinds that worked, in JSON.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type config struct {
	Kind, Server, Topic, Authority, Certificate, Key, User, Password string
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func options(given config) []kgo.Opt {
	trusted := x509.NewCertPool()
	pem, err := os.ReadFile(given.Authority)
	check(err)
	trusted.AppendCertsFromPEM(pem)
	settings := &tls.Config{RootCAs: trusted}
	if given.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(given.Certificate, given.Certificate)
		check(err)
		settings.Certificates = []tls.Certificate{pair}
	}
	chosen := []kgo.Opt{
		kgo.SeedBrokers(given.Server),
		kgo.DialTLSConfig(settings),
		kgo.ConsumeTopics(given.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	var mechanism sasl.Mechanism
	secret := scram.Auth{User: given.User, Pass: given.Password}
	switch given.Kind {
	case "PLAIN":
		mechanism = plain.Auth{User: given.User, Pass: given.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		mechanism = secret.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		mechanism = secret.AsSha512Mechanism()
	default:
		return chosen
	}
	return append(chosen, kgo.SASL(mechanism))
}

func main() {
	var all []config
	check(json.NewDecoder(os.Stdin).Decode(&all))
	worked := []string{}
	for _, given := range all {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
		client, err := kgo.NewClient(options(given)...)
		check(err)
		value := "franz-go by " + given.Kind
		check(client.ProduceSync(ctx, &kgo.Record{Topic: given.Topic, Value: []byte(value)}).FirstErr())
		found := false
		for !found {
			fetches := client.PollFetches(ctx)
			check(fetches.Err())
			fetches.EachRecord(func(record *kgo.Record) { found = found || string(record.Value) == value })
		}
		client.Close()
		cancel()
		worked = append(worked, given.Kind)
	}
	text, err := json.Marshal(worked)
	check(err)
	fmt.Println(string(text))
}
