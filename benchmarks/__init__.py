"""Side-by-side measurements of wdsmix, its peers and the physical limit; run with ``make bench``. Not installed."""
