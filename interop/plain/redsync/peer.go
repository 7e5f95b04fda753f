// A process that counts under redsync's mutex, as it is told on its standard input: the order `count` of ../peer.py. Ends with its input.
//
// Played by hand, since it needs Go; crates/leasehold/tests/beside/plain_peers_quorum.rs says how.
package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	client "github.com/redis/go-redis/v9"
)

func count(locks *redsync.Redsync, name, path string, times int) error {
	for range times {
		// As often as it takes, after redsync's own pauses.
		mutex := locks.NewMutex(name, redsync.WithExpiry(30*time.Second), redsync.WithTries(math.MaxInt32))
		if err := mutex.Lock(); err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		number, err := strconv.Atoi(string(text))
		if err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
		if err := os.WriteFile(path, []byte(strconv.Itoa(number+1)), 0o644); err != nil {
			return err
		}
		if ok, err := mutex.Unlock(); !ok {
			return fmt.Errorf("it was not held to the end: %v", err)
		}
	}
	return nil
}

func main() {
	var pools []redis.Pool
	for _, url := range strings.Split(os.Args[1], ",") {
		options, err := client.ParseURL(url)
		if err != nil {
			panic(err)
		}
		pools = append(pools, goredis.NewPool(client.NewClient(options)))
	}
	locks := redsync.New(pools...)
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		times, err := strconv.Atoi(words[3])
		if err == nil {
			err = count(locks, words[1], words[2], times)
		}
		if err != nil {
			fmt.Println("failed:", err)
		} else {
			fmt.Println("counted")
		}
	}
}
