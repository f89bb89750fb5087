"""Each row of Table 1 beside an independent implementation: functions that measure how far apart they are."""
