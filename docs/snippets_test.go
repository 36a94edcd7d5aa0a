package docs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/docscan"
	"github.com/ceyewan/genesis/internal/testenv"
)

const module = "github.com/ceyewan/genesis"

// packages are what snippets may import. They do not show it.
var packages = append([]string{
	"context", "errors", "fmt", "net/http", "os/exec", "testing", "time", "github.com/redis/go-redis/v9",
	"go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/client/v3/concurrency",
}, ownPackages("clog", "connector", "container", "telemetry", "telemetry/otlp", "dlock", "dlock/dashboard", "dlock/driver", "dlock/drivertest",
	"dlock/election", "dlock/etcdlock", "dlock/fence", "dlock/filelock", "dlock/memlock", "dlock/once", "dlock/redislock", "dlock/redlock")...)

func ownPackages(paths ...string) []string {
	for i, p := range paths {
		paths[i] = module + "/pkg/" + p
	}
	return paths
}

// nameOf is the name under which a snippet uses a package.
func nameOf(path string) string {
	switch path {
	case "github.com/redis/go-redis/v9":
		return "redis"
	case "go.etcd.io/etcd/client/v3":
		return "clientv3"
	}
	return filepath.Base(path)
}

// addresses replaces those of the documents by variables of testdata/snippets/support.go.
var addresses = strings.NewReplacer(
	`"localhost:6379"`, "redisAddr", `"127.0.0.1:6379"`, "redisAddr", `"/run/user/1000/locks"`, "folder",
	`[]string{"https://a:2379", "https://b:2379", "https://c:2379"}`, "endpoints",
	`[]string{"r1:6379", "r2:6379", "r3:6379", "r4:6379", "r5:6379"}`, "servers")

// given are the variables that the snippets of a page take for granted, with what they are here.
// The last part says which snippets of the page, by a text in them.
var given = []struct{ page, name, is, with string }{
	{"docs/backends/etcd.md", "client", "etcdClient()", ""},
	{"docs/backends/etcd.md", "session", "etcdSession()", ""},
	{"docs/backends/etcd.md", "guard", "etcdGuard()", "IsOwner"},
	{"docs/backends/etcd.md", "locks", "etcdLocks()", "LeaseOf"},
	{"pkg/dlock/etcdlock/names.go", "session", "etcdSession()", ""},
	{"pkg/dlock/etcdlock/owner.go", "client", "etcdClient()", ""},
	{"pkg/dlock/etcdlock/owner.go", "guard", "etcdGuard()", ""},
	{"docs/backends/file.md", "store", "files", ""},
	{"docs/backends/file.md", "guard", "fileGuard()", ""},
	{"docs/backends/file.md", "cmd", `exec.Command("true")`, ""},
	{"pkg/dlock/filelock/inherit.go", "store", "files", ""},
	{"pkg/dlock/filelock/inherit.go", "guard", "fileGuard()", ""},
	{"pkg/dlock/filelock/inherit.go", "cmd", `exec.Command("true")`, ""},
	{"docs/backends/redlock.md", "a", "redisClient(0)", "redlock.New"},
	{"docs/backends/redlock.md", "b", "redisClient(1)", "redlock.New"},
	{"docs/backends/redlock.md", "c", "redisClient(2)", "redlock.New"},
	{"docs/backends/redlock.md", "d", "redisClient(3)", "redlock.New"},
	{"docs/backends/redlock.md", "e", "redisClient(4)", "redlock.New"},
	{"docs/observability.md", "log", "clog.Default()", ""},
	{"docs/observability.md", "token", `"secret"`, ""},
	{"docs/observability.md", "cfg", `telemetry.Config{ServiceName: "shop"}`, "otlp."},
	{"docs/observability.md", "cfg", "&dlock.Config{}", "NewRedis"},
	{"docs/observability.md", "conn", "redisConnector()", "NewRedis"},
	{"docs/observability.md", "tel", `must(telemetry.New(telemetry.Config{ServiceName: "shop"}))`, "NewRedis"},
	{"pkg/container/container.go", "logger", "clog.Default()", ""},
	{"pkg/dlock/admin.go", "admin", "newAdmin()", ""},
	{"docs/recipes.md", "locks", "memory()", ""},
	{"docs/recipes.md", "reports", "texts{}", ""},
	{"docs/dashboard.md", "locks", "withAdmin()", ""},
	{"docs/observability.md", "locks", "memory()", "Health"},
	{"pkg/dlock/dashboard/dashboard.go", "locks", "withAdmin()", ""},
	{"pkg/dlock/election/election.go", "locks", "memory()", ""},
	{"pkg/dlock/once/once.go", "locks", "memory()", ""},
	{"pkg/dlock/doc.go", "client", "memory()", ""},
	{"pkg/dlock/guard.go", "client", "memory()", ""},
	{"pkg/dlock/drivertest/drivertest.go", "open", "(func(*testing.T, driver.Options) driver.Driver)(nil)", ""},
}

var (
	declaration = regexp.MustCompile(`(?m)^func (\w+)\(`)
	made        = regexp.MustCompile(`(?m)^(\w+(?:, \w+)*) :=`)
	usesEtcd    = regexp.MustCompile(`etcdClient|etcdSession|etcdLocks|etcdGuard|endpoints`)
)

// complete makes a function of a snippet. It ends with a use of all that the snippet makes.
func complete(b docscan.Block, name string) string {
	text := declaration.ReplaceAllString(addresses.Replace(docscan.Elided(b.Text)), "$1 := func(")
	var before strings.Builder
	for _, g := range given {
		if g.page == b.Page && strings.Contains(b.Text, g.with) && regexp.MustCompile(`\b`+g.name+`\b`).MatchString(text) {
			fmt.Fprintf(&before, "%s := %s; _ = %[1]s\n", g.name, g.is)
		}
	}
	var all []string
	for _, m := range made.FindAllStringSubmatch(text, -1) {
		for v := range strings.SplitSeq(m[1], ", ") {
			if !slices.Contains(all, v) {
				all = append(all, v)
			}
		}
	}
	return fmt.Sprintf("func %s() error {\n%s{\n//line %s:%d\n%s\nreturn finish(%s)\n}\n}\n",
		name, &before, b.Page, b.Line, text, strings.Join(all, ", "))
}

// A binary is everything of the documentation that can be built.
type binary struct {
	dlock, snippets string // the programs
	programs        []docscan.Block
	plain, etcd     []string // the names of the snippets, and of those that need etcd
}

// build builds the command dlock and one program that has all snippets and programs of the pages.
var build = sync.OnceValues(func() (b binary, err error) {
	blocks, err := goBlocks()
	if err != nil {
		return b, err
	}
	files := map[string]string{}
	var functions, table, used strings.Builder
	for i, block := range blocks[program] {
		name := fmt.Sprint("program", i)
		fmt.Fprintf(&used, "%q\n", module+"/docs/testdata/snippets/"+name)
		fmt.Fprintf(&table, "programs[%q] = %s.Main\n", name, name)
		code := strings.Replace(strings.Replace(block.Text, "package main", "package "+name, 1), "func main()", "func Main()", 1)
		files[name+"/main.go"] = fmt.Sprintf("//line %s:%d\n%s", block.Page, block.Line, addresses.Replace(code))
		files[name+"/addr.go"] = "package " + name + "\nimport \"os\"\nvar redisAddr = os.Getenv(\"REDIS\")\n"
	}
	for i, block := range blocks[fragment] {
		name := fmt.Sprint("fragment", i)
		code := complete(block, name)
		functions.WriteString(code)
		fmt.Fprintf(&table, "fragments[%q] = %s\n", block.String(), name)
		if usesEtcd.MatchString(code) {
			b.etcd = append(b.etcd, block.String())
		} else {
			b.plain = append(b.plain, block.String())
		}
	}
	for _, path := range packages {
		if regexp.MustCompile(`\b` + nameOf(path) + `\.[A-Z]`).MatchString(functions.String()) {
			fmt.Fprintf(&used, "%s %q\n", nameOf(path), path)
		}
	}
	files["generated.go"] = fmt.Sprintf("package main\nimport (\n%s)\nvar programs, fragments = map[string]func(){}, map[string]func() error{}\nfunc init() {\n%s}\n%s",
		&used, &table, &functions)
	b.programs = blocks[program]
	b.dlock, b.snippets = filepath.Join(dir, "dlock"), filepath.Join(dir, "snippets")
	return b, compile(files)
})

// compile builds both programs, with files added to those of testdata/snippets.
func compile(files map[string]string) error {
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range files {
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		at, err := filepath.Abs(filepath.Join("testdata", "snippets", name))
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			return err
		}
		overlay.Replace[at] = path
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "overlay.json")
	err = os.WriteFile(path, text, 0o600)
	if err != nil {
		return err
	}
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-overlay", path, "-o", dir+"/", "../cmd/dlock", "./testdata/snippets").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

func built(t *testing.T) binary {
	t.Helper()
	b, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var printed = regexp.MustCompile(`fmt\.Println\("([^"]+)"`)

// Whole programs run as they stand, but for the address of the server, and print what they say.
func TestPrograms(t *testing.T) {
	t.Parallel()
	b := built(t)
	env := []string{"REDIS=" + testenv.Redis(t).Addr()}
	if len(b.programs) < 4 {
		t.Errorf("%d programs, there were 4", len(b.programs))
	}
	for i, block := range b.programs {
		out := runSnippets(t, env, fmt.Sprint("program", i))
		for _, m := range printed.FindAllStringSubmatch(block.Text, -1) {
			if !strings.Contains(out, m[1]) {
				t.Errorf("%s prints %q, want %q", block, out, m[1])
			}
		}
	}
}

// Pieces of Go run in a function, with the variables that their pages take for granted.
func TestSnippets(t *testing.T) {
	t.Parallel()
	b := built(t)
	var servers []string
	for range 5 {
		servers = append(servers, testenv.Redis(t).Addr())
	}
	runSnippets(t, []string{"REDIS=" + servers[0], "REDLOCK=" + strings.Join(servers, ",")}, b.plain...)
}

func TestSnippetsOfEtcd(t *testing.T) {
	t.Parallel()
	b := built(t)
	runSnippets(t, []string{"ETCD=" + testenv.Etcd(t).Endpoint()}, b.etcd...)
}

// runSnippets runs snippets in a folder with the file of a service, and returns what they print.
func runSnippets(t *testing.T, env []string, names ...string) string {
	t.Helper()
	folder := t.TempDir()
	service := read(t, "../examples/container/service.yaml")
	for _, v := range env {
		service = strings.ReplaceAll(service, "localhost:6379", strings.TrimPrefix(v, "REDIS="))
	}
	err := os.WriteFile(filepath.Join(folder, "service.yaml"), []byte(service), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, built(t).snippets, names...)
	cmd.Dir, cmd.Env = folder, append(append(os.Environ(), env...), "FOLDER="+folder)
	var logged strings.Builder
	cmd.Stderr = &logged
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, &logged)
	}
	return string(out)
}
