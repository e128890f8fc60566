// Writes a record to a secured broker and reads it again, for each configuration on standard input: a JSON
// array. Prints the kinds that worked, in JSON.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type config struct {
	Kind, Server, Topic, Authority, Certificate, User, Password, Tokens string
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func fetchToken(ctx context.Context, given config, settings *tls.Config) (oauth.Auth, error) {
	form := strings.NewReader("grant_type=client_credentials")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, given.Tokens, form)
	if err != nil {
		return oauth.Auth{}, err
	}
	request.SetBasicAuth(given.User, given.Password)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: settings, DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return oauth.Auth{}, err
	}
	defer answer.Body.Close()
	var found struct {
		Token string `json:"access_token"`
	}
	err = json.NewDecoder(answer.Body).Decode(&found)
	return oauth.Auth{Token: found.Token}, err
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
	case "OAUTHBEARER":
		mechanism = oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			return fetchToken(ctx, given, settings)
		})
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
