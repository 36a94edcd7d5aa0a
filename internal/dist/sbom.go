package main

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// A bom is a CycloneDX document, as far as a Go binary knows what it consists of.
type bom struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

// writeSBOM lists the modules that a binary was built from, by what the linker has recorded in it.
func writeSBOM(binary, file, version string, at time.Time) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	if info.Main.Version == "(devel)" && version != "" {
		info.Main.Version = version
	}
	b := bom{
		Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: metadata{Timestamp: at.Format(time.RFC3339), Component: componentOf("application", &info.Main)},
		Components: []component{componentOf("library", &debug.Module{
			Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go"),
		})},
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		b.Components = append(b.Components, componentOf("library", m))
	}
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func componentOf(kind string, m *debug.Module) component {
	purl := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	return component{Type: kind, Ref: purl, Name: m.Path, Version: m.Version, PURL: purl}
}
