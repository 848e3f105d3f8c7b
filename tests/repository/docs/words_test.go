package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// bannedWords have better names, in docs/glossary.md or in plain English.
var bannedWords = map[string]string{
	"wish": "desired", "wishes": "desired", "wished": "desired",
	"owe": "pending", "owes": "pending", "owed": "pending",
	"teller":   "reporter, status writer",
	"told":     "reports, notified",
	"sighting": "observation", "sightings": "observations",
	"outsider": "external address", "outsiders": "external addresses",
	"stranger": "external address", "strangers": "external addresses",
	"anew":   "again",
	"nobody": "name the thing: no pod, no process", "somebody": "name the thing: a pod, a process",
	"anybody": "name the thing: any peer, any pod", "everybody": "name the thing: every peer, all pods",
	"judge": "evaluate", "judges": "evaluates", "judged": "evaluated",
	"meeting": "match, intersection", "meetings": "matches, intersections",
	"station": "hop", "stations": "hops",
	"tend": "maintain", "tends": "maintains",
	"besides": "also, in addition to",
}

var (
	bannedPhrases = regexp.MustCompile(`(?i)\btells? (whether|that)\b`)
	// Text is called text. The words of a bit set are machine words.
	bannedFunctions = regexp.MustCompile(`func (\([^)]*\) )?[wW]ords\(`)
)

var (
	wordsOf   = regexp.MustCompile(`[A-Z]+[a-z]*|[a-z]+`)
	checked   = []string{".go", ".md", ".yaml", ".yml"}
	skipped   = []string{".git", "bin", "testdata", "vendor"}
	listsThem = []string{"CHANGELOG.md", "tests/repository/docs/words_test.go"} // old names, and this list
)

// Code, documentation and manifests use the vocabulary of docs/glossary.md.
func TestVocabulary(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skipped, d.Name()):
			return fs.SkipDir
		case d.IsDir() || !slices.Contains(checked, filepath.Ext(name)) || slices.Contains(listsThem, name):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for number, line := range strings.Split(string(text), "\n") {
			for _, problem := range problems(line) {
				t.Errorf("%s:%d: %s", name, number+1, problem)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// problems returns what a line says against the glossary.
func problems(line string) []string {
	var out []string
	for _, word := range wordsOf.FindAllString(line, -1) {
		if instead := bannedWords[strings.ToLower(word)]; instead != "" {
			out = append(out, word+": better "+instead)
		}
	}
	if m := bannedPhrases.FindString(line); m != "" {
		out = append(out, m+": better reports whether, says that")
	}
	if m := bannedFunctions.FindString(line); m != "" {
		out = append(out, m+": better text")
	}
	return out
}

// The packages and folders that the glossary names exist.
func TestGlossaryNamesPackages(t *testing.T) {
	names := regexp.MustCompile("`((?:pkg|tests)/[a-z/]+)`").FindAllStringSubmatch(read(t, "docs/glossary.md"), -1)
	if len(names) < 20 {
		t.Fatalf("found %d packages in docs/glossary.md: the search is wrong", len(names))
	}
	for _, m := range names {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("docs/glossary.md names %s: %v", m[1], err)
		}
	}
}
