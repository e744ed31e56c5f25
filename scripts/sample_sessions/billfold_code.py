"""The code base of ``billfold`` as every session finds it, and commands that sessions share."""

from scripts.sample_sessions.calls import Project, bash

TOTALS = '''\
"""Line totals and invoice totals."""

from decimal import Decimal


def line_total(quantity, unit_price):
    return round(float(quantity) * float(unit_price), 2)


def invoice_total(lines, tax_rate="0.19"):
    net = sum(line_total(q, p) for q, p in lines)
    return net + net * float(tax_rate)
'''

TEST_TOTALS = """\
from decimal import Decimal

from billfold.totals import invoice_total, line_total


def test_line_total_rounds_half_up():
    assert line_total(3, "0.335") == Decimal("1.01")


def test_invoice_total_with_tax():
    assert invoice_total([(1, "10.00"), (2, "4.50")]) == Decimal("22.61")
"""

CLI = '''\
"""The billfold command."""

import argparse

from billfold.store import load_invoices
from billfold.totals import invoice_total


def build_parser():
    parser = argparse.ArgumentParser("billfold")
    parser.add_argument("--month", help="YYYY-MM")
    return parser


def main(argv=None):
    args = build_parser().parse_args(argv)
    for invoice in load_invoices(args.month):
        print(invoice.number, invoice_total(invoice.lines))
'''

STORE = '''\
"""Invoices on disk: one JSON file each."""

import json
from pathlib import Path

ROOT = Path("invoices")


def load_invoices(month=None):
    for path in sorted(ROOT.glob("*.json")):
        invoice = json.loads(path.read_text())
        if month is None or invoice["issued"].startswith(month):
            yield invoice
'''

FEES = '''\
"""Late fees."""

GRACE_DAYS = 14


def late_fee(days_overdue, net):
    if days_overdue > GRACE_DAYS:
        return net * 0.05
    return 0
'''

BILLFOLD = Project(
    "billfold",
    "/home/mira",
    "/home/mira/code/billfold",
    {
        "billfold/totals.py": TOTALS,
        "billfold/cli.py": CLI,
        "billfold/store.py": STORE,
        "billfold/fees.py": FEES,
        "tests/test_totals.py": TEST_TOTALS,
        "tests/test_cli.py": "from billfold.cli import build_parser\n\n\n"
        'def test_month():\n    assert build_parser().parse_args(["--month", "2026-10"]).month\n',
        "tests/test_fees.py": "from billfold.fees import late_fee\n\n\n"
        "def test_grace_period_is_free():\n    assert late_fee(14, 100) == 0\n",
        "README.md": "# billfold\n\nInvoices on the command line.\n",
    },
)
PYTEST_TOTALS = bash("python -m pytest tests/test_totals.py -q")
PYTEST_CLI = bash("python -m pytest tests/test_cli.py -q")
PYTEST_FEES = bash("python -m pytest tests/test_fees.py -q")
PYTEST_EXPORT = bash("python -m pytest tests/test_export.py -q")
STATUS = bash("git status --short")
