"""The code base of ``ladle`` as every session finds it, and commands that sessions share."""

from scripts.sample_sessions.calls import Project, bash

PARSE = """\
package quantity

import "strconv"

// Parse reads an amount such as "2" or "1.5".
func Parse(s string) (float64, error) {
	return strconv.ParseFloat(s, 64)
}
"""

PARSE_TEST = """\
package quantity

import "testing"

func TestParseFraction(t *testing.T) {
	got, err := Parse("1/2")
	if err != nil || got != 0.5 {
		t.Fatalf("got %v, %v", got, err)
	}
}
"""

UNITS = """\
package units

// Grams per unit of volume of water.
var Grams = map[string]float64{
	"cup":  236.6,
	"tbsp": 14.8,
}

func ToGrams(amount float64, unit string) float64 {
	return amount * Grams[unit]
}
"""

RENDER = """\
package render

import "fmt"

func Line(amount float64, unit, name string) string {
	return fmt.Sprintf("%f %s %s", amount, unit, name)
}
"""

LADLE = Project(
    "ladle",
    "/Users/jonas",
    "/Users/jonas/dev/ladle",
    {
        "quantity/parse.go": PARSE,
        "quantity/parse_test.go": PARSE_TEST,
        "units/units.go": UNITS,
        "units/units_test.go": 'package units\n\nimport "testing"\n\n'
        'func TestCup(t *testing.T) {\n\tif ToGrams(2, "cup") != 473.2 {\n\t\tt.Fail()\n\t}\n}\n',
        "render/line.go": RENDER,
        "render/line_test.go": 'package render\n\nimport "testing"\n\n'
        'func TestLine(t *testing.T) {\n\tif Line(2, "cup", "oats") != "2 cup oats" {\n'
        "\t\tt.Fail()\n\t}\n}\n",
        "main.go": "package main\n\nfunc main() { run() }\n",
        "go.mod": "module ladle.example/ladle\n\ngo 1.26\n",
    },
)
GO_QUANTITY = bash("go test ./quantity/")
GO_UNITS = bash("go test ./units/")
GO_RENDER = bash("go test ./render/")
STATUS = bash("git status --short")
