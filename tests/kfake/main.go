// Another implementation of a Kafka broker, which answers any request about transactions with an error, at random, or
// carries it out and loses the answer.
//
// It says "<address>" on a line, and on SIGUSR1 refuses no more and says how often it has refused what. It ends with its standard input.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

var levels = map[string]*kversion.Versions{
	"3.0": kversion.V3_0_0(),
	"3.3": kversion.V3_3_0(),
	"3.7": kversion.V3_7_0(),
	"3.9": kversion.V3_9_0(),
	"4.0": kversion.V4_0_0(),
	"4.4": kversion.Stable(),
}

var patience = []*kerr.Error{kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.NotCoordinator}

// A request to produce is carried out all the same with REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND.
var refusals = map[kmsg.Key][]*kerr.Error{
	kmsg.InitProducerID:       append([]*kerr.Error{kerr.ConcurrentTransactions}, patience...),
	kmsg.AddPartitionsToTxn:   append([]*kerr.Error{kerr.ConcurrentTransactions}, patience...),
	kmsg.EndTxn:               append([]*kerr.Error{kerr.ConcurrentTransactions, kerr.RequestTimedOut}, patience...),
	kmsg.FindCoordinator:      {kerr.CoordinatorNotAvailable},
	kmsg.ListTransactions:     {kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable},
	kmsg.DescribeTransactions: patience,
	kmsg.Produce:              {kerr.NotEnoughReplicas, kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend},
}

// What the faults share: they are asked of on the cluster's goroutine, and told to rest from another.
type dice struct {
	sync.Mutex
	random *rand.Rand
	rate   float64
	counts map[string]int
}

// One decision a request, not one for each of its partitions.
func (d *dice) draws(key kmsg.Key, err *kerr.Error, share float64) func(kmsg.Request) bool {
	var last kmsg.Request
	var drawn bool
	return func(request kmsg.Request) bool {
		d.Lock()
		defer d.Unlock()
		if request != last {
			last, drawn = request, d.random.Float64() < d.rate*share
			if drawn {
				d.counts[key.Name()+" "+err.Message]++
			}
		}
		return drawn
	}
}

func (d *dice) losesAnswer(key kmsg.Key) bool {
	if _, refused := refusals[key]; !refused {
		return false
	}
	d.Lock()
	defer d.Unlock()
	lost := d.random.Float64() < d.rate/2
	if lost {
		d.counts[key.Name()+" ANSWER_LOST"]++
	}
	return lost
}

type listener struct {
	net.Listener
	dice *dice
}

func (l listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	return &connection{Conn: accepted, dice: l.dice}, err
}

// A connection that ends where an answer is lost. The broker reads a request's length, four bytes, and then the request.
type connection struct {
	net.Conn
	dice   *dice
	begins bool
	asked  sync.Map // the keys of the requests, by their correlation ids
}

func (c *connection) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	if c.begins && n >= 8 {
		c.asked.Store(binary.BigEndian.Uint32(into[4:8]), kmsg.Key(binary.BigEndian.Uint16(into)))
	}
	c.begins = len(into) == 4
	return n, err
}

func (c *connection) Write(answer []byte) (int, error) {
	key, known := c.asked.LoadAndDelete(binary.BigEndian.Uint32(answer[4:8]))
	if known && c.dice.losesAnswer(key.(kmsg.Key)) {
		c.Close()
		return 0, io.ErrClosedPipe
	}
	return c.Conn.Write(answer)
}

func main() {
	level := flag.String("level", "4.4", "the newest requests that it knows: 3.0, 3.3, 3.7, 3.9, 4.0 or 4.4")
	brokers := flag.Int("brokers", 1, "how many")
	rate := flag.Float64("rate", 0, "how many of the requests are refused; of half as many the answer is lost")
	seed := flag.Int64("seed", 0, "of what is refused")
	topic := flag.String("topic", "out", "made with two partitions")
	flag.Parse()

	d := &dice{random: rand.New(rand.NewSource(*seed)), rate: *rate, counts: map[string]int{}}
	listen := func(network, address string) (net.Listener, error) {
		made, err := net.Listen(network, address)
		return listener{made, d}, err
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(*brokers), kfake.MaxVersions(levels[*level]),
		kfake.SeedTopics(2, *topic), kfake.ListenFn(listen))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for key, errors := range refusals {
		for _, one := range errors {
			cluster.Fault(kfake.Fault{
				Keys: []kmsg.Key{key}, Err: one, Count: -1, When: d.draws(key, one, 1/float64(len(errors))),
				TopLevel: key == kmsg.ListTransactions,
			})
		}
	}
	fmt.Println(strings.Join(cluster.ListenAddrs(), ","))

	rest := make(chan os.Signal, 1)
	signal.Notify(rest, syscall.SIGUSR1)
	go func() {
		for range rest {
			d.Lock()
			d.rate = 0
			said := []string{}
			for what, count := range d.counts {
				said = append(said, fmt.Sprintf("%s %d", what, count))
			}
			fmt.Println(strings.Join(said, ";"))
			d.Unlock()
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	cluster.Close()
}
