"""The tests of the OpenAI Agents SDK that cannot hold for another store than SQLite, by the reason."""

from __future__ import annotations

_ADVANCED = "tests/extensions/memory/test_advanced_sqlite_session.py::"
_SESSION = "tests/memory/test_session.py::"
_COMPACTION = "tests/memory/test_openai_responses_compaction_session.py::TestOpenAIResponsesCompactionSession::"
_SUFFIX = "tests/memory/test_compaction_suffix.py::"

DESELECTED = {
    "the name of a deleted branch is free on Shoal, so that branches without end fit into a session.": (
        _ADVANCED + "test_branch_ids_remain_reserved_after_delete_and_clear",
    ),
    "it reads, patches or locks the SQLite connection itself, or counts rows of its tables.": (
        *(
            _ADVANCED + name
            for name in (
                "test_add_items_rolls_back_messages_when_structure_metadata_fails",
                "test_add_items_can_retry_after_structure_metadata_failure",
                "test_add_items_failure_preserves_existing_history",
                "test_add_items_rolls_back_partial_structure_metadata_write",
                "test_add_items_rollback_failure_invalidates_connection",
                "test_post_commit_cancellation_propagates_after_known_mutation_outcome",
                "test_auxiliary_mutation_cancellation_waits_for_commit",
                "test_failed_branch_reservation_rolls_back_and_allows_retry",
                "test_delete_branch_removes_branch_only_messages",
                "test_delete_branch_keeps_messages_still_referenced_by_another_branch",
                "test_orphan_cleanup_uses_set_based_delete_for_many_messages",
                "test_failed_usage_write_rolls_back_cached_connection",
                "test_usage_tracking_failure_identity_follows_model_data_policy",
                "test_concurrent_add_items_preserves_message_structure_for_file_db",
                "test_clear_session_removes_structure_and_usage_metadata",
                "test_pop_item_removes_its_structure_row",
                "test_pop_item_removes_turn_usage_only_when_turn_emptied",
                "test_pop_item_respects_current_branch_and_keeps_shared_messages",
                "test_pop_item_deletes_shared_copied_message_only_when_unreferenced",
                "test_pop_item_uses_branch_snapshot_when_branch_switches_concurrently",
                "test_stale_switch_after_clear_does_not_repoint_to_deleted_branch",
                "test_stale_create_branch_after_clear_does_not_repoint",
                "test_clear_before_branch_transaction_prevents_stale_reservation",
                "test_store_run_usage_waits_for_database_lock_off_event_loop",
                "test_store_run_usage_cancellation_during_capture_waits_for_commit",
                "test_store_run_usage_keeps_target_while_capture_is_waiting",
                "test_store_run_usage_keeps_turn_when_history_changes_during_capture",
                "test_add_captures_coherent_branch_after_clear_publication",
                "test_queued_add_keeps_selected_branch",
                "test_queued_append_cannot_resurrect_deleted_branch",
                "test_queued_turn_mutation_releases_later_usage_capture",
                "test_turn_ordering_survives_reuse_on_another_event_loop",
                "test_stale_store_run_usage_skipped_when_turn_removed_by_pop",
                "test_stale_store_run_usage_not_recorded_against_reused_turn_number",
                "test_store_run_usage_survives_unrelated_branch_deletion",
                "test_store_run_usage_skips_when_current_branch_has_no_turn",
                "test_clear_session_resets_current_branch_to_main",
                "test_switch_validation_cancellation_waits_for_generation_commit",
                "test_pop_item_rolls_back_on_failure_after_earlier_delete",
                "test_clear_session_rolls_back_on_failure_after_earlier_delete",
            )
        ),
        *(
            _SESSION + name
            for name in (
                "test_sqlite_session_close_closes_worker_thread_connections",
                "test_sqlite_session_reaps_connections_from_exited_worker_threads",
                "test_sqlite_session_closes_retired_connections_before_the_next_allocation",
                "test_sqlite_session_keeps_connections_of_live_worker_threads",
                "test_sqlite_session_file_lock_is_shared_across_instances",
                "test_sqlite_session_failed_add_items_releases_write_lock",
                "test_sqlite_session_failed_clear_session_rolls_back",
                "test_sqlite_session_failed_pop_item_releases_write_lock",
                "test_sqlite_session_rollback_failure_evicts_connection",
                "test_sqlite_session_close_retries_quarantined_connection",
                "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome",
            )
        ),
        *(
            _COMPACTION + name
            for name in (
                "test_settled_pop_failure_invalidates_response_chain",
                "test_settled_clear_failure_invalidates_response_chain",
            )
        ),
        *(
            _SUFFIX + name
            for name in (
                "test_suffix_transaction_rolls_back_failed_insert[sqlite]",
                "test_cancelled_suffix_transaction_settles_before_newer_append[sqlite]",
                "test_failed_encrypted_suffix_transaction_preserves_original_tokens[sqlite-False]",
                "test_failed_encrypted_suffix_transaction_preserves_original_tokens[sqlite-True]",
            )
        ),
        "tests/test_run_impl_resume_paths.py::test_handoff_resume_after_cancelled_compaction_commits",
    ),
    "it is about names, owners and older layouts of SQLite's tables.": (
        *(
            _ADVANCED + name
            for name in (
                "test_advanced_session_respects_custom_table_names",
                "test_structure_initialization_failure_invalidates_connection",
                "test_tool_usage_reads_legacy_shell_and_patch_names",
                "test_branch_reservations_migrate_existing_populated_branches",
                "test_legacy_branch_ids_are_backfilled_before_destructive_operations",
                "test_legacy_destructive_noops_leave_database_unlocked",
                "test_default_read_does_not_initialize_clear_generation_table",
                "test_structure_tables_reject_a_second_base_table_pair",
                "test_structure_tables_reject_changed_sessions_with_shared_messages",
                "test_structure_tables_reject_changed_messages_with_shared_sessions",
                "test_identifier_resolution_leaves_connection_authorized",
                "test_no_create_session_rejects_a_database_without_an_owner",
                "test_no_create_session_rejects_owner_metadata_without_base_tables",
                "test_structure_tables_reject_an_ownerless_layout",
                "test_structure_tables_reject_malformed_owner_layouts",
                "test_structure_tables_accept_equivalent_child_column_casing",
                "test_concurrent_structure_table_claims_leave_one_coherent_owner",
                "test_structure_tables_reject_distinct_non_ascii_identifiers",
            )
        ),
    ),
    "it writes rows that are no JSON into SQLite's tables; Shoal refuses such items, and reports damage.": (
        *(_ADVANCED + name for name in ("test_get_items_limit_skips_corrupt_newest_rows",)),
        *(
            _SESSION + name
            for name in (
                "test_sqlite_session_pop_item_skips_corrupt_most_recent",
                "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows",
                "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows",
                "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows",
            )
        ),
    ),
    "it forks processes that open one SQLite file. Processes share a Shoal store through a node.": (
        *(
            _ADVANCED + name
            for name in (
                "test_branch_allocation_is_serialized_across_processes",
                "test_pop_item_claim_is_unique_across_processes",
            )
        ),
    ),
    "it closes a session: a session on Shoal has no connection of its own, the store is closed.": (
        *(_ADVANCED + name for name in ("test_advanced_sqlite_session_closed_rejects_empty_add_items",)),
        *(_SESSION + name for name in ("test_sqlite_session_closed_rejects_empty_add_items",)),
    ),
    "it wants a branch without items not to exist; here it exists, and can be deleted.": (
        *(_ADVANCED + name for name in ("test_failed_force_delete_keeps_current_branch",)),
    ),
    "it wants the text of a message in a debug log of the session; here no message is logged.": (
        *(_ADVANCED + name for name in ("test_create_branch_logging_respects_model_data_policy",)),
    ),
    "it fails on the SDK's own session too, with the openai package that is installed beside it.": (
        *(_ADVANCED + name for name in ("test_external_clear_resets_stale_branch_before_default_reads[usage]",)),
    ),
}
