-- Beside Dagster's database, one for the ledger: whoever wipes the former keeps the books.
CREATE DATABASE ledger;
