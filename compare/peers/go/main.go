// A process that locks with rueidislock, redsync or redislock, as it is told on its standard input (compare/README.md).
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	client "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"golang.org/x/sys/unix"
)

// A library takes a name, for so long if it does not renew, and returns what gives it back.
type library struct {
	take     func(name string, ttl time.Duration) (free func() error, err error)
	ttl      time.Duration
	module   []string
	settings string
}

// Until a call of rueidislock that does not come back is made again.
const rueidislockPatience = time.Second

func open(word, address string, lease time.Duration) (library, error) {
	ctx := context.Background()
	switch word {
	case "rueidislock":
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: []string{address}},
			KeyMajority:    1,
			NoLoopTracking: true,
			KeyValidity:    lease, // 0: its default
		})
		take := func(name string, ttl time.Duration) (func() error, error) {
			if ttl > 0 { // not in `work`
				_, cancel, err := locker.WithContext(ctx, name)
				return func() error { cancel(); return nil }, err
			}
			for {
				// An attempt that took longer than its TryNextAfter may wait for ever. A deadline would be one of the hold, too.
				asked, giveUp := context.WithCancel(ctx)
				patience := time.AfterFunc(rueidislockPatience, giveUp)
				_, cancel, err := locker.WithContext(asked, name)
				if err == nil && patience.Stop() {
					return func() error { cancel(); giveUp(); return nil }, nil
				}
				giveUp()
				if err == nil {
					cancel() // too late: its hold has ended with its call
				} else if !errors.Is(err, context.Canceled) {
					return nil, err
				}
			}
		}
		return library{take, 0, []string{"github.com/redis/rueidis"},
			"lease 5 s, renewed each 2.5 s; waiters are woken; one server, `NoLoopTracking`. An attempt that takes longer than its 20 ms (`TryNextAfter`) may never be woken: called again after 1 s"}, err
	case "redsync":
		locks := redsync.New(goredis.NewPool(client.NewClient(&client.Options{Addr: address})))
		take := func(name string, ttl time.Duration) (func() error, error) {
			mutex := locks.NewMutex(name, redsync.WithExpiry(ttl))
			err := mutex.Lock()
			for isTaken(err) { // it gives up after 32 attempts
				err = mutex.Lock()
			}
			return func() error {
				_, err := mutex.Unlock()
				return err
			}, err
		}
		return library{take, 8 * time.Second, []string{"github.com/go-redsync/redsync/v4", "github.com/redis/go-redis/v9"},
			"TTL 8 s, not renewed; asks again after 50 to 250 ms, gives up after 32 times and is called again"}, nil
	case "redislock":
		locker := redislock.New(client.NewClient(&client.Options{Network: "tcp", Addr: address}))
		patient := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
		take := func(name string, ttl time.Duration) (func() error, error) {
			lock, err := locker.Obtain(ctx, name, ttl, patient)
			// It gives up after a TTL.
			for errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, context.DeadlineExceeded) {
				lock, err = locker.Obtain(ctx, name, ttl, patient)
			}
			return func() error { return lock.Release(ctx) }, err
		}
		return library{take, time.Second, []string{"github.com/bsm/redislock", "github.com/redis/go-redis/v9"},
			"TTL 1 s (the README's 0.1 s ends within a slow hold), not renewed; asks again each 100 ms as its example of retries, since its default never waits"}, nil
	}
	return library{}, fmt.Errorf("there is no library %q here", word)
}

func isTaken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed)
}

// The versions of the modules that this program was built with.
func versions(modules []string) string {
	var found []string
	info, _ := debug.ReadBuildInfo()
	for i, path := range modules {
		for _, module := range info.Deps {
			if module.Path == path {
				version := strings.TrimPrefix(module.Version, "v")
				if i > 0 {
					version = "go-redis " + version
				}
				found = append(found, version)
			}
		}
	}
	return strings.Join(found, ", ")
}

// Microseconds on the clock that all processes share.
func micros() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano() / 1000
}

// Adds one to the number in the file. Other goroutines run between the two halves, so that a holder who is not alone loses a count.
func count(file *os.File) error {
	digits := make([]byte, 12)
	if _, err := file.ReadAt(digits, 0); err != nil {
		return err
	}
	number, err := strconv.Atoi(string(digits))
	if err != nil {
		return err
	}
	runtime.Gosched()
	_, err = file.WriteAt(fmt.Appendf(nil, "%012d", number+1), 0)
	return err
}

// The holds of a task of `work`.
type done struct {
	inside int
	waits  []int64
	err    error
}

func (l *library) until(end int64, name string, file *os.File) (all done) {
	for {
		asked := micros()
		if asked >= end {
			return all
		}
		free, err := l.take(name, l.ttl)
		if err == nil {
			all.waits = append(all.waits, micros()-asked)
			if file != nil {
				err = count(file)
			}
			err = errors.Join(err, free())
		}
		if err != nil {
			all.err = err
			return all
		}
		if micros() <= end {
			all.inside++
		}
	}
}

func (l *library) work(tasks, names int, name string, ms int, path string) (string, error) {
	var file *os.File
	if path != "-" {
		var err error
		if file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
			return "", err
		}
		defer file.Close()
	}
	end := micros() + int64(ms)*1000
	each := make([]done, tasks)
	var running sync.WaitGroup
	for i := range tasks {
		running.Go(func() { each[i] = l.until(end, fmt.Sprintf("%s:%d", name, i%names), file) })
	}
	running.Wait()
	inside, waits := 0, []int64{}
	for _, one := range each {
		if one.err != nil {
			return "", one.err
		}
		inside += one.inside
		waits = append(waits, one.waits...)
	}
	slices.Sort(waits)
	at := func(percent int) int64 {
		if len(waits) == 0 {
			return 0
		}
		return waits[min(len(waits)*percent/100, len(waits)-1)]
	}
	return fmt.Sprintf("worked %d %d %d %d %d", inside, len(waits), at(50), at(99), at(100)), nil
}

var frees sync.Map

func (l *library) keep(name string, ttl time.Duration) {
	free, err := l.take(name, ttl)
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	at, freed := micros(), make(chan struct{})
	frees.Store(name, freed)
	fmt.Println("got", name, at)
	<-freed
	at = micros()
	if err := free(); err != nil {
		fmt.Println("failed", err)
		return
	}
	fmt.Println("freed", name, at)
}

func (l *library) obey(line string) (string, error) {
	words := strings.Fields(line)
	number := func(at int) int {
		n, _ := strconv.Atoi(words[at])
		return n
	}
	switch words[0] {
	case "work":
		return l.work(number(1), number(2), words[3], number(4), words[5])
	case "take":
		for range number(2) {
			go l.keep(words[1], time.Duration(number(3))*time.Millisecond)
		}
		return "", nil
	case "free":
		freed, _ := frees.LoadAndDelete(words[1])
		close(freed.(chan struct{}))
		return "", nil
	}
	return "", fmt.Errorf("there is no order %q", line)
}

func main() {
	lease, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	l, err := open(os.Args[1], os.Args[2], time.Duration(lease)*time.Millisecond)
	if err != nil {
		panic(err)
	}
	fmt.Printf("ready\t%s\t%s\n", versions(l.module), l.settings)
	// The process ends with its input in any case, also while tasks wait for a server that has ended with the runner.
	orders := make(chan string, 100) // more than are sent during one
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			orders <- lines.Text()
		}
		os.Exit(0)
	}()
	for order := range orders {
		answer, err := l.obey(order)
		if err != nil {
			answer = fmt.Sprint("failed ", err)
		}
		if answer != "" {
			fmt.Println(answer)
		}
	}
}
