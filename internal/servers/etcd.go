package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/ceyewan/genesis/internal/loopback"
)

const etcdElection = 500 * time.Millisecond

// EtcdOptions change how etcd is started. The zero value suits tests.
type EtcdOptions struct {
	// Args are appended to the arguments and override the defaults, for example "--max-txn-ops",
	// "16".
	Args []string
	// Dir is the working directory. A single server continues with the data in it, if there is any;
	// each member of a cluster creates a new directory in it. Empty: temporary directories that
	// Stop removes.
	Dir string
	// Election is the election timeout, by default 500 ms; the heartbeat interval is a tenth of it.
	// It also limits leases: etcd grants none shorter than 1.5 times this, rounded up to whole
	// seconds. That is 1 s by default, and 2 s with etcd's own default of 1000 ms.
	Election time.Duration
	// Fsync makes each write reach the disk before it is acknowledged. Without it, a Kill loses
	// nothing, but a power failure would.
	Fsync bool
}

// An Etcd is one etcd process on loopback ports. It keeps its ports through Kill and Restart. Its
// methods may be called from any goroutine.
type Etcd struct {
	server
	alone bool // no member of a cluster
}

// StartEtcd starts a server and returns when it serves linearizable reads. If etcd is not
// installed, the error is ErrNotInstalled.
func StartEtcd(ctx context.Context, opts EtcdOptions) (*Etcd, error) {
	nodes, err := launchEtcd(ctx, 1, opts)
	if err != nil {
		return nil, err
	}
	return nodes[0], nil
}

// Endpoint returns the URL for clients.
func (e *Etcd) Endpoint() string { return url(e.ports[0]) }

func url(p *loopback.Port) string { return "http://" + p.Addr() }

// etcdData is the data directory in the working directory.
const etcdData = "data"

func etcdArgs(name, cluster string, client, peer *loopback.Port, opts EtcdOptions) []string {
	election := opts.Election
	if election == 0 {
		election = etcdElection
	}
	args := []string{
		"--name", name,
		"--data-dir", etcdData,
		"--listen-client-urls", url(client),
		"--advertise-client-urls", url(client),
		"--listen-peer-urls", url(peer),
		"--initial-advertise-peer-urls", url(peer),
		"--initial-cluster", cluster,
		"--heartbeat-interval", strconv.FormatInt(election.Milliseconds()/10, 10),
		"--election-timeout", strconv.FormatInt(election.Milliseconds(), 10),
	}
	if !opts.Fsync {
		args = append(args, "--unsafe-no-fsync")
	}
	return slices.Concat(args, opts.Args)
}

// Restart kills the server if it runs, starts it again on the same ports, and returns when it
// serves linearizable reads; a member of a cluster needs a majority for that. With keepData, all
// acknowledged data is kept. Without it, the server starts empty, which a member of a cluster
// cannot: the others would not know it.
func (e *Etcd) Restart(ctx context.Context, keepData bool) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if !keepData && !e.alone {
		return fmt.Errorf("restart etcd %s: a member of a cluster cannot lose its data alone", e.Addr())
	}
	if err := e.end(keepData); err != nil {
		return fmt.Errorf("restart etcd %s: %w", e.Addr(), err)
	}
	return e.startAgain(ctx)
}

func (e *Etcd) end(keepData bool) error {
	if err := e.Kill(); err != nil || keepData {
		return err
	}
	return os.RemoveAll(filepath.Join(e.Dir(), etcdData))
}

// identify asks the server once. The command line shows whether the server that answers is this one
// and not another that took the port.
func (e *Etcd) identify(ctx context.Context) error {
	vars, err := e.vars(ctx)
	if err != nil {
		return err
	}
	if len(vars.Cmdline) == 0 || !slices.Equal(vars.Cmdline[1:], e.proc.opts.Args) {
		return fmt.Errorf("%w: %q answers", errPortTaken, vars.Cmdline)
	}
	_, err = e.get(ctx, "/health")
	return err
}

// etcdVars is what etcd reports about itself, whether or not it sees a majority.
type etcdVars struct {
	Cmdline []string
	Raft    struct {
		ID, Lead string // of members; 0 means none
		Term     uint64
	} `json:"raft.status"`
}

func (e *Etcd) vars(ctx context.Context) (vars etcdVars, err error) {
	text, err := e.get(ctx, "/debug/vars")
	if err != nil {
		return vars, err
	}
	return vars, json.Unmarshal(text, &vars)
}

// etcdHTTP keeps no connections, and thus no goroutines.
var etcdHTTP = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (e *Etcd) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Endpoint()+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := etcdHTTP.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status + ": " + string(text))
	}
	return text, err
}
