package report

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// The files of a report.
const (
	SummaryFile  = "summary.json"
	MarkdownFile = "results.md"
	PageFile     = "index.html"
)

// Write puts the summary, the Markdown, the page and the pictures into a directory, which is made if
// it is not there.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	summary, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	page, err := r.Page()
	if err != nil {
		return err
	}
	pictures, err := r.Pictures()
	if err != nil {
		return err
	}
	files := map[string][]byte{SummaryFile: append(summary, '\n'), MarkdownFile: []byte(r.Markdown()), PageFile: []byte(page)}
	for name, picture := range pictures {
		files[name] = []byte(picture)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
