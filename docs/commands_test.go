package docs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/ceyewan/genesis/internal/docscan"
)

// A rule says how a test runs commands, or checks them if they take long, need root or a network.
type rule struct {
	command *regexp.Regexp
	// run returns what the shell runs in the place of the command, or an error if the command is wrong.
	run func(c docscan.Command) (string, error)
}

// same runs a command as it is.
func same(c docscan.Command) (string, error) { return c.Text, nil }

// elsewhere leaves a command to another test.
func elsewhere(folder, test string) func(docscan.Command) (string, error) {
	return func(docscan.Command) (string, error) { return "", hasTest(folder, test) }
}

// rules are tried in this order. A command that matches none is a failure.
var rules = []rule{
	{regexp.MustCompile(`^(dlock|flock|etcdctl|redis-server|go|go test)( lock| -s)?$`), onlyName},
	{regexp.MustCompile(`^etcdctl `), elsewhere("docs", "TestEtcdctl")},
	{regexp.MustCompile(`^(redis-server &|mkdir shop .*|go get ` + module + `|go mod tidy .*)$`), elsewhere("docs", "TestGettingStarted")},
	{regexp.MustCompile(`^(cd bench && )?go run \. `), elsewhere("bench", "TestDocumentedCommands")},
	{regexp.MustCompile(`^cd test/interop && go test -run '\^\$' -bench Redlock `), elsewhere("test/interop", "BenchmarkRedlockAlone")},
	{regexp.MustCompile(`^go run -C lab \. `), elsewhere("lab", "TestDocumentedCommands")},
	{regexp.MustCompile(`^go run \./test/mutants( |$)`), elsewhere("test/mutants", "TestDocumentedCommands")},
	{regexp.MustCompile(`^go run \./cmd/dlock `), func(c docscan.Command) (string, error) {
		return strings.TrimPrefix(c.Text, "go run ./cmd/"), nil
	}},
	{regexp.MustCompile(`^(\w+=\S+ |for .* do )*go run (\./|-C )examples/`), examples},
	{regexp.MustCompile(`^curl .*localhost:8080/reports/july$`), elsewhere("examples/http", "TestAnswers")},
	{regexp.MustCompile(`^@hourly +trylock `), flagsOf("examples/trylock/main.go")},
	{regexp.MustCompile(`^go (get|install) `), packagePath},
	{regexp.MustCompile(`^go build -tags filesonly `), func(c docscan.Command) (string, error) {
		return strings.Replace(c.Text, "build", `build -C "$root" -ldflags=-w -o "$PWD/filesonly"`, 1) + ` && ./filesonly run key true`, nil
	}},
	{regexp.MustCompile(`^go build \./cmd/dlock$`), func(c docscan.Command) (string, error) { // build has built it
		return strings.Replace(c.Text, "build", `list -C "$root" -f '{{.Name}}'`, 1) + ` | grep -qx main && dlock version`, nil
	}},
	{regexp.MustCompile(`^go run \./internal/picture `), elsewhere("internal/picture", "TestPictureIsTrue")},
	{regexp.MustCompile(`^(\w+=\S+ )*go test `), goTest},
	{regexp.MustCompile(`^make help$`), func(docscan.Command) (string, error) { return `$make -C "$root" help`, nil }},
	{regexp.MustCompile(`^make `), func(c docscan.Command) (string, error) {
		return strings.Replace(c.Text, "make", `$make -C "$root" -n`, 1) + " >/dev/null", nil
	}},
	{regexp.MustCompile(`^\./scripts/test`), func(c docscan.Command) (string, error) {
		return `"$root"/` + c.Text + " --help >/dev/null", nil // it reads the options in their order
	}},
	{regexp.MustCompile(`^\./scripts/\w+$`), func(c docscan.Command) (string, error) { return `test -x "$root"/` + c.Text, nil }},
	{regexp.MustCompile(`^git config core\.hooksPath \.githooks$`), func(c docscan.Command) (string, error) {
		return `git init -q && ` + c.Text + ` && test -x "$root/$(git config core.hooksPath)/pre-commit"`, nil
	}},
	{regexp.MustCompile(`^(install|echo) .*/dlock`), func(c docscan.Command) (string, error) {
		return "mkdir -p etc/tmpfiles.d && " + strings.NewReplacer(" /run/", ` "$PWD"/run/`, " /etc/", ` "$PWD"/etc/`).Replace(c.Text), nil
	}},
	{regexp.MustCompile(`^flock file true$`), same},
	{regexp.MustCompile(`^flock "\$dir/`), func(c docscan.Command) (string, error) { // the stand-in for command needs the lock
		return `dir=$PWD/locks name=order%3a1.lock; mkdir -m 700 "$dir"; DLOCK_BACKEND=file://$dir ` + c.Text, nil
	}},
	{regexp.MustCompile(`^source <\(dlock completion bash\)$`), func(c docscan.Command) (string, error) {
		return c.Text + "; complete -p dlock", nil
	}},
	{regexp.MustCompile(`^dlock ls / `), eachCommand},
	{regexp.MustCompile(`^(\w+=\S+ )*dlock bench`), func(c docscan.Command) (string, error) {
		return beforePipe.ReplaceAllString(c.Text, "$1 "+quick+"$2"), nil
	}},
	{regexp.MustCompile(`^dlock ui( -|$)`), untilServed},
	{regexp.MustCompile(`^dlock \w+( .*(KEY|PREFIX).*)?$`), named},
	{regexp.MustCompile(`^(\w+=\S+ |token=\$\()?dlock `), same},
}

// quick makes a benchmark that takes a moment. The last flags win.
const quick = "--clients 3 --section 0 --duration 20ms --rounds 3"

var beforePipe = regexp.MustCompile(`^([^|]*[^| ])( \|.*)?$`)

// translate returns what the shell runs for a command.
func translate(c docscan.Command) (string, error) {
	for _, r := range rules {
		if r.command.MatchString(c.Text) {
			text, err := r.run(c)
			if err != nil {
				err = fmt.Errorf("%s: %w", c, err)
			}
			return text, err
		}
	}
	return "", fmt.Errorf("%s: no test runs this", c)
}

// onlyName accepts the name of a program within a sentence.
func onlyName(c docscan.Command) (string, error) {
	if !c.Span {
		return "", errors.New("no test runs this")
	}
	return "", nil
}

// named checks that dlock has a command that a sentence names, or whose usage it shows.
func named(c docscan.Command) (string, error) {
	if !c.Span {
		return c.Text, nil
	}
	name := "dlock " + docscan.Words(c.Text)[1]
	return name + " --help | grep '^  " + name + " ' >/dev/null", nil // of an unknown one it shows the help of dlock
}

// untilServed starts the lock page on a free port, and ends it when it has written its address.
func untilServed(c docscan.Command) (string, error) {
	if c.Span {
		return named(c)
	}
	return c.Text + ` --listen 127.0.0.1:0 >url & pid=$!; SECONDS=0
until grep -q http url; do
  test $SECONDS -lt 60 || { echo "no address within a minute" >&2; kill -KILL $pid; exit 1; }
  sleep 0.02
done
kill $pid; wait $pid || test $? = 143`, nil
}

// eachCommand reads a list such as "dlock ls / show".
func eachCommand(c docscan.Command) (text string, err error) {
	for name := range strings.SplitSeq(strings.TrimPrefix(c.Text, "dlock "), " / ") {
		line, err := named(docscan.Command{Text: "dlock " + name, Span: true})
		if err != nil {
			return "", err
		}
		text += line + "\n"
	}
	return text, nil
}

func hasTest(folder, test string) error {
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || strings.Contains(string(text), "\nfunc "+test+"(") {
			return err
		}
	}
	return errors.Join(err, fmt.Errorf("%s has no %s", folder, test))
}

var example = regexp.MustCompile(`go run (?:\./|-C )(examples/\w+)( \.)?`)

// examples checks that the examples exist, and that they have tests, which run them.
func examples(c docscan.Command) (string, error) {
	for _, m := range example.FindAllStringSubmatch(c.Text, -1) {
		_, err := os.Stat(filepath.Join(root, m[1], "main_test.go"))
		if err != nil {
			return "", err
		}
		_, err = os.Stat(filepath.Join(root, m[1], "go.mod"))
		if (err == nil) != (m[2] != "") {
			return "", errors.New("-C is for examples that are modules")
		}
	}
	for _, m := range regexp.MustCompile(`(?:^| )([A-Z]+)=`).FindAllStringSubmatch(c.Text, -1) {
		if !inSource("examples", `os.Getenv("`+m[1]+`")`) {
			return "", fmt.Errorf("no example reads %s", m[1])
		}
	}
	return "", nil
}

// flagsOf checks that a program has the flags of a command.
func flagsOf(file string) func(docscan.Command) (string, error) {
	return func(c docscan.Command) (string, error) {
		text, err := os.ReadFile(filepath.Join(root, file))
		for _, w := range docscan.Words(c.Text) {
			name, ok := strings.CutPrefix(w, "-")
			if ok && !strings.Contains(string(text), `("`+name+`", `) {
				err = errors.Join(err, fmt.Errorf("%s has no flag -%s", file, name))
			}
		}
		return "", err
	}
}

// packagePath checks the package that a command fetches.
func packagePath(c docscan.Command) (string, error) {
	words := docscan.Words(c.Text)
	path, _, _ := strings.Cut(words[2], "@")
	folder, ok := strings.CutPrefix(path, module)
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	switch {
	case err != nil || !ok || len(files) == 0:
		return "", fmt.Errorf("there is no package %s: %w", path, err)
	case words[1] == "install":
		_, err = os.Stat(filepath.Join(root, folder, "main.go"))
	}
	return "", err
}

// The recipes of the Makefile are what make runs: they are checked like the commands of the pages.
func TestRecipes(t *testing.T) {
	commands, err := allCommands()
	if err != nil {
		t.Fatal(err)
	}
	checked := regexp.MustCompile(`^(\w+=\S+ )*go (test|run) |^cd bench`)
	for _, c := range commands {
		if c.Page == "Makefile" && checked.MatchString(c.Text) {
			_, err := translate(c)
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// sources are the Go files of the repository, by their paths.
var sources = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	_ = filepath.WalkDir(root, func(path string, _ fs.DirEntry, _ error) error {
		if filepath.Ext(path) == ".go" {
			text, _ := os.ReadFile(path) // what is missing fails the check
			all[strings.TrimPrefix(filepath.ToSlash(path), root+"/")] = string(text)
		}
		return nil
	})
	return all
})

// inSource reports whether Go code below a folder has a text.
func inSource(folder, text string) bool {
	for path, code := range sources() {
		if strings.HasPrefix(path, folder+"/") && strings.Contains(code, text) {
			return true
		}
	}
	return false
}

// allCommands are the commands of all pages and comments, and of the Makefile.
var allCommands = sync.OnceValues(func() ([]docscan.Command, error) { return docscan.Commands(root) })
