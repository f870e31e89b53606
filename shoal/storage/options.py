"""The options of RocksDB, and the reasons for them.

Laws:
- RocksDB never decides by itself when a log ends: its own bounds lie beyond ours (`rocks`).
- Each of its caches and buffers has a bound with a name in `shoal.config`.
- Every block is checked when it is read. Of all damage, only the torn end of a log is accepted.
"""

from __future__ import annotations

from rocksdict import BlockBasedOptions, Options

from shoal.config import Config, KiB
from shoal.storage import engine

_WRITE_BUFFER_FACTOR = 4  # RocksDB begins a new log at so many times `memtable_bytes`; ours are begun before that.
COMPACTS_AT = "level0_file_num_compaction_trigger"
# So many files make a compaction due; while space is given back, one does. Every thread's rows are spread over all keys, so any
# compaction writes all of the next level again.
LEVEL_ZERO_FILES = 8
TTL_S = 30 * 24 * 3600  # RocksDB's default: files older than this move to the next level.

# Agents save the same bytes in many threads and blocks: prompts, tool schemas, the same bytes in a tail and in its chunk.
# A dictionary for each table finds that, and blocks stay small for reads of single rows.
_DICTIONARY_BYTES = 64 * KiB
_ZSTD_LEVEL = 1
_ZSTD_WINDOW_BITS = -14  # RocksDB's default.


def options_for(config: Config, *, create: bool, encrypted: bool = False) -> Options:
    """The options for an opening; with `create`, a missing database is made. Encrypted rows do not compress."""
    options = engine.library.Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(engine.library.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_write_buffer_size(_WRITE_BUFFER_FACTOR * config.memtable_bytes)
    # Room for flushes that lag behind: a stalled write would stop the event loop.
    options.set_max_write_buffer_number(8)
    options.set_level_zero_file_num_compaction_trigger(LEVEL_ZERO_FILES)
    options.set_level_zero_slowdown_writes_trigger(64)
    options.set_level_zero_stop_writes_trigger(128)
    # A save asks for several keys that are not there yet: the memtable says so without a search. The ratio is one of the write
    # buffer, of which a quarter is used: some 40 bits for each row of 250 bytes. An opening has to touch all of them.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.005)
    options.set_max_background_jobs(2)
    options.set_max_open_files(config.tables_open_max)
    # At an opening RocksDB looks into 16 tables at most; by default it begins 16 threads for that, which takes longer.
    options.set_max_file_opening_threads(1)
    if encrypted:
        options.set_compression_type(engine.library.DBCompressionType.none())
    else:
        options.set_compression_type(engine.library.DBCompressionType.zstd())
        options.set_compression_options(_ZSTD_WINDOW_BITS, _ZSTD_LEVEL, 0, _DICTIONARY_BYTES)
    options.set_block_based_table_factory(_tables(config))
    # It holds the first and last key of each file, also of those that are gone, so each change of the files begins a new one.
    options.set_max_manifest_file_size(1)
    # RocksDB's own diary, LOG and LOG.old.*: a few small files. It holds no keys and no values.
    options.set_max_log_file_size(128 * KiB)
    options.set_keep_log_file_num(3)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _tables(config: Config) -> BlockBasedOptions:
    tables = engine.library.BlockBasedOptions()
    tables.set_block_cache(engine.library.Cache(config.block_cache_bytes))
    tables.set_block_size(16 * KiB)
    tables.set_bloom_filter(10, False)
    # Otherwise indexes and filters of every open file live outside the cache's bound. They are in pieces, because the cache is
    # split into up to 64 shards: the filter of a table of 64 MiB is larger than a shard, and would be read again for every row.
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_index_type(engine.library.BlockBasedIndexType.two_level_index_search())
    tables.set_partition_filters(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    return tables
