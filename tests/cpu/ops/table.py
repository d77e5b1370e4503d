"""The op test table: one row per primitive op.  A new op gets a row here and is then tested."""

import table_attention
import table_elementary
import table_elementwise
import table_factors
import table_gather
import table_movement
import table_recurrent
import table_scan
import table_special
import table_windows
from row import Row

ROWS: tuple[Row, ...] = (
    table_elementwise.ROWS
    + table_elementary.ROWS
    + table_special.ROWS
    + table_movement.ROWS
    + table_windows.ROWS
    + table_gather.ROWS
    + table_scan.ROWS
    + table_recurrent.ROWS
    + table_attention.ROWS
    + table_factors.ROWS
)
