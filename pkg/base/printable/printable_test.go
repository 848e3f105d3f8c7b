package printable

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// hostile are texts that change a terminal, a line or what a reader sees. Each is between
// an a and a b.
var hostile = map[string]string{
	"an escape sequence":             "\x1b",
	"the end of a line":              "\n",
	"the begin of a line":            "\r",
	"a tab":                          "\t",
	"delete":                         "\x7f",
	"no byte":                        "\x00",
	"a C1 control (next line)":       "\u0085",
	"a C1 control (sequence)":        "\u009b",
	"a C1 byte that is no UTF-8":     "\x9b",
	"half a character":               "\xe2",
	"a surrogate":                    "\xed",
	"the replacement character":      "\ufffd",
	"a left-to-right mark":           "\u200e",
	"a right-to-left mark":           "\u200f",
	"an Arabic letter mark":          "\u061c",
	"a right-to-left override":       "\u202e",
	"the end of an override":         "\u202c",
	"an isolate":                     "\u2066",
	"the end of an isolate":          "\u2069",
	"a zero-width space":             "\u200b",
	"a zero-width joiner":            "\u200d",
	"a word joiner":                  "\u2060",
	"a byte order mark":              "\ufeff",
	"a line separator":               "\u2028",
	"a paragraph separator":          "\u2029",
	"a no-break space":               "\u00a0",
	"a soft hyphen":                  "\u00ad",
	"a tag":                          "\U000e0041",
	"a variation selector":           "\ufe0f",
	"a variation selector, plane 14": "\U000e0100",
	"a grapheme joiner":              "\u034f",
	"a Hangul filler":                "\u3164",
	"a Braille blank":                "\u2800",
	"a private character":            "\ue000",
	"an interlinear annotation":      "\ufff9",
}

func TestText(t *testing.T) {
	for name, text := range hostile {
		t.Run(name, func(t *testing.T) {
			if got := Text("a" + text + "b"); got != "a?b" {
				t.Errorf("got %+q", got)
			}
			want := "a"
			for i := range len(text) {
				want += `\` + string([]byte{'0' + text[i]/100, '0' + text[i]/10%10, '0' + text[i]%10})
			}
			if got := DomainName("a" + text + "b"); got != want+"b" {
				t.Errorf("as a domain name: %q, want %q", got, want+"b")
			}
		})
	}
	for _, text := range []string{"", "web-0 to db-0, TCP 5432", "größer als 5 €", "数据库"} {
		if got := Text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestDomainName(t *testing.T) {
	for name, want := range map[string]string{
		"":                        "",
		"www.example.com":         "www.example.com",
		"_sip._tcp.EXAMPLE-1.com": "_sip._tcp.EXAMPLE-1.com",
		`a\b.com`:                 `a\092b.com`,
		"a b.com":                 `a\032b.com`,
		"*.com":                   `\042.com`,
		"é.com":                   `\195\169.com`,
	} {
		if got := DomainName(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, text := range hostile {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Text(text)
		if !utf8.ValidString(got) || Text(got) != got || utf8.RuneCountInString(got) != utf8.RuneCountInString(text) {
			t.Errorf("%+q became %+q", text, got)
		}
		for _, r := range got {
			if r < ' ' || 0x7f <= r && r < 0xa1 || 0x200b <= r && r < 0x2010 || 0x2028 <= r && r < 0x2030 || 0x2060 <= r && r < 0x2070 || r >= 0xe0000 {
				t.Errorf("%+q has %U", got, r)
			}
		}
		name := DomainName(text)
		if strings.Trim(name, `abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.\`) != "" && strings.IndexFunc(name, func(r rune) bool { return r > '~' || r <= ' ' }) >= 0 {
			t.Errorf("%+q is the domain name %+q", text, name)
		}
	})
}
