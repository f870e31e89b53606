/** @typedef {import('../types/api.js').components['schemas']} Schemas */
/** @typedef {import('./transport.js').ReadOptions} ReadOptions */
/** @typedef {import('./transport.js').WriteOptions} WriteOptions */
/** @typedef {Schemas['CheckpointView'] & { state: Record<string, any>, metadata: Record<string, any> }} Checkpoint */
/** As `expectHead`: the branch must not exist yet. */
export const NO_HEAD: "";
/**
 * @typedef {object} SaveParts
 * @property {string} [branch] `main` if left out.
 * @property {string} [expectHead] The only head that the branch may have; in place of the checkpoint that this handle knows.
 * @property {'refuse' | 'fork'} [onConflict] With `fork`, a save that is not based on a head makes a second one.
 * @property {Record<string, unknown>} [metadata]
 * @property {string} [label] A name for the checkpoint, unique within its thread.
 * @property {string} [author]
 */
/** @typedef {SaveParts & WriteOptions} SaveOptions */
/** @typedef {{ set?: Record<string, unknown>, append?: Record<string, unknown[]>, remove?: string[] }} Changes */
export class Thread {
    /** @param {import('./transport.js').Transport} transport @param {string} space @param {string} name */
    constructor(transport: import("./transport.js").Transport, space: string, name: string);
    _transport: import("./transport.js").Transport;
    _path: string;
    name: string;
    journal: Journal;
    inbox: Inbox;
    files: Files;
    /** @type {Map<string, string>} Branch → the checkpoint that this handle last loaded or saved there. */
    _seen: Map<string, string>;
    /**
     * The newest checkpoint of a branch, or the one with an id or a label.
     * @param {{ checkpoint?: string, branch?: string, label?: string, channels?: string[], asOf?: Date } & ReadOptions} [options]
     * @returns {Promise<Checkpoint>}
     */
    load({ checkpoint, branch, label, channels, asOf, ...read }?: {
        checkpoint?: string;
        branch?: string;
        label?: string;
        channels?: string[];
        asOf?: Date;
    } & ReadOptions): Promise<Checkpoint>;
    /**
     * Save a whole state. Channels that are not named are gone.
     * @param {Record<string, unknown>} state
     * @param {SaveOptions} [options]
     * @returns {Promise<Schemas['SavedView']>}
     */
    save(state: Record<string, unknown>, options?: SaveOptions): Promise<Schemas["SavedView"]>;
    /**
     * Change parts of the newest state; the other channels stay as they are. Elements that several writers append at once are all kept.
     * @param {Changes} changes
     * @param {SaveOptions} [options]
     * @returns {Promise<Schemas['SavedView']>}
     */
    update({ set, append, remove }: Changes, options?: SaveOptions): Promise<Schemas["SavedView"]>;
    /**
     * Add elements to the end of a channel.
     * @param {string} channel
     * @param {unknown[]} elements
     * @param {SaveOptions} [options]
     */
    append(channel: string, elements: unknown[], options?: SaveOptions): Promise<{
        branch: string;
        heads: string[];
        id: string;
        parents: string[];
        wall_ms: number;
    }>;
    /**
     * @param {object} content
     * @param {SaveOptions} options
     * @param {string | undefined} unseen What a save builds on if this handle has seen nothing; undefined for the newest.
     * @returns {Promise<Schemas['SavedView']>}
     */
    _save(content: object, { branch, expectHead, onConflict, metadata, label, author, ...write }: SaveOptions, unseen: string | undefined): Promise<Schemas["SavedView"]>;
    /**
     * The checkpoints of a branch, newest first.
     * @param {{ branch?: string, states?: boolean, filter?: Record<string, unknown>, author?: string, limit?: number } & ReadOptions} [options]
     * @returns {AsyncGenerator<Checkpoint, void, void>}
     */
    history({ branch, states, filter, author, limit, ...read }?: {
        branch?: string;
        states?: boolean;
        filter?: Record<string, unknown>;
        author?: string;
        limit?: number;
    } & ReadOptions): AsyncGenerator<Checkpoint, void, void>;
    /**
     * Branch → the ids of its heads, the winner first; in byte order of the names.
     * @param {{ names?: string[], after?: string, limit?: number } & ReadOptions} [options] `names`: only these; `after`: only above this name; `limit`: at most so many.
     * @returns {Promise<Record<string, string[]>>}
     */
    heads({ names, after, limit, ...read }?: {
        names?: string[];
        after?: string;
        limit?: number;
    } & ReadOptions): Promise<Record<string, string[]>>;
    /** @param {ReadOptions} [options] @returns {Promise<Schemas['StandingView']>} */
    status(options?: ReadOptions): Promise<Schemas["StandingView"]>;
    /**
     * Approve a thread that waits for a person, so that its agent goes on.
     * @param {{ by?: string, reason?: string, expectMs?: number } & WriteOptions} [options] `expectMs`: the `wall_ms` of the status that was seen; if it was set since, nothing is written.
     * @returns {Promise<Schemas['StandingView']>}
     */
    approve({ by, reason, expectMs, ...write }?: {
        by?: string;
        reason?: string;
        expectMs?: number;
    } & WriteOptions): Promise<Schemas["StandingView"]>;
    /**
     * Pause a thread: its agent stops before its next step.
     * @param {{ by?: string, reason?: string, expectMs?: number } & WriteOptions} [options] `expectMs`: the `wall_ms` of the status that was seen; if it was set since, nothing is written.
     * @returns {Promise<Schemas['StandingView']>}
     */
    pause({ by, reason, expectMs, ...write }?: {
        by?: string;
        reason?: string;
        expectMs?: number;
    } & WriteOptions): Promise<Schemas["StandingView"]>;
    /**
     * End a thread as failed, such as by refusing what it asks. `approve` lets it go on nevertheless.
     * @param {{ by?: string, reason?: string, expectMs?: number } & WriteOptions} [options] `expectMs`: the `wall_ms` of the status that was seen; if it was set since, nothing is written.
     * @returns {Promise<Schemas['StandingView']>}
     */
    fail({ by, reason, expectMs, ...write }?: {
        by?: string;
        reason?: string;
        expectMs?: number;
    } & WriteOptions): Promise<Schemas["StandingView"]>;
    /**
     * Change the newest state of a branch as a person, by a JSON Patch (RFC 6902).
     * @param {object[]} patch
     * @param {{ branch?: string, by?: string } & WriteOptions} [options]
     * @returns {Promise<Schemas['SavedView']>}
     */
    edit(patch: object[], { branch, by, ...write }?: {
        branch?: string;
        by?: string;
    } & WriteOptions): Promise<Schemas["SavedView"]>;
    /**
     * Begin a branch at a checkpoint.
     * @param {string} branch
     * @param {{ at: string, reason?: string, by?: string } & WriteOptions} options
     * @returns {Promise<Schemas['MovedView']>}
     */
    fork(branch: string, { at, reason, by, ...write }: {
        at: string;
        reason?: string;
        by?: string;
    } & WriteOptions): Promise<Schemas["MovedView"]>;
    /**
     * Put a branch back on a checkpoint. No checkpoint is deleted.
     * @param {string} checkpoint
     * @param {{ branch?: string, reason?: string, by?: string } & WriteOptions} [options]
     * @returns {Promise<Schemas['MovedView']>}
     */
    rollback(checkpoint: string, { branch, reason, by, ...write }?: {
        branch?: string;
        reason?: string;
        by?: string;
    } & WriteOptions): Promise<Schemas["MovedView"]>;
    /** Delete a branch; its checkpoints stay until a prune. @param {string} branch @param {WriteOptions} [options] @returns {Promise<Schemas['BranchDeletedView']>} */
    deleteBranch(branch: string, options?: WriteOptions): Promise<Schemas["BranchDeletedView"]>;
    /**
     * Prune old checkpoints, or with `dryRun` only say which.
     * @param {{ keepLast?: number, olderThanS?: number, branch?: string, dryRun?: boolean } & WriteOptions} options
     * @returns {Promise<Schemas['PruneReportView']>}
     */
    prune({ keepLast, olderThanS, branch, dryRun, ...write }: {
        keepLast?: number;
        olderThanS?: number;
        branch?: string;
        dryRun?: boolean;
    } & WriteOptions): Promise<Schemas["PruneReportView"]>;
    /** The labels, with their checkpoints. @param {ReadOptions} [options] @returns {AsyncGenerator<Schemas['LabelledView'], void, void>} */
    labels(options?: ReadOptions): AsyncGenerator<Schemas["LabelledView"], void, void>;
    /** Remove a label; its checkpoint stays until it is pruned. @param {string} label @param {WriteOptions} [options] @returns {Promise<boolean>} Whether there was one. */
    unlabel(label: string, options?: WriteOptions): Promise<boolean>;
    /**
     * The steps in the order in which they began.
     * @param {{ open?: boolean, limit?: number } & ReadOptions} [options] `open`: only those without an outcome.
     * @returns {AsyncGenerator<Schemas['StepView'], void, void>}
     */
    steps({ open, limit, ...read }?: {
        open?: boolean;
        limit?: number;
    } & ReadOptions): AsyncGenerator<Schemas["StepView"], void, void>;
    /**
     * Settle a step that has no outcome, by a person's decision.
     * @param {string} step Its key.
     * @param {{ how: 'result' | 'retry' | 'abandon', value?: unknown, by?: string, reason?: string } & WriteOptions} decision
     * @returns {Promise<Schemas['StepView']>}
     */
    resolve(step: string, { how, value, by, reason, ...write }: {
        how: "result" | "retry" | "abandon";
        value?: unknown;
        by?: string;
        reason?: string;
    } & WriteOptions): Promise<Schemas["StepView"]>;
    /** Who drives the thread: the holder of its lease. @param {ReadOptions} [options] @returns {Promise<Schemas['LeaseStateView']>} */
    lease(options?: ReadOptions): Promise<Schemas["LeaseStateView"]>;
    /**
     * A page of what was done in the thread, the newest first. While `more` is true, ask again with its `cursor` as `after`.
     * @param {import('./store.js').AuditOptions} [options]
     * @returns {Promise<Schemas['TimelineView']>}
     */
    timeline({ kind, by, text, sinceMs, after, limit, ...read }?: import("./store.js").AuditOptions): Promise<Schemas["TimelineView"]>;
    /** Checkpoints, steps and events in one order of time. @param {ReadOptions} [options] @returns {Promise<Schemas['AuditEntryView'][]>} */
    audit(options?: ReadOptions): Promise<Schemas["AuditEntryView"][]>;
    /**
     * Send a message to the thread's inbox. Of all messages with one `messageKey`, it has one.
     * @param {unknown} message
     * @param {{ messageKey?: string, by?: string } & WriteOptions} [options]
     * @returns {Promise<{ id: string, sent: boolean }>} `sent` is false if there was one with its key.
     */
    send(message: unknown, { messageKey, by, ...write }?: {
        messageKey?: string;
        by?: string;
    } & WriteOptions): Promise<{
        id: string;
        sent: boolean;
    }>;
    /** How far each of its worklists is. @param {ReadOptions} [options] @returns {Promise<Schemas['WorklistView'][]>} */
    worklists(options?: ReadOptions): Promise<Schemas["WorklistView"][]>;
    /** @param {string} name @returns {Worklist} */
    worklist(name: string): Worklist;
    /** Delete the thread on every node. @param {WriteOptions} [options] @returns {Promise<boolean>} Whether there was one. */
    delete(options?: WriteOptions): Promise<boolean>;
}
export class Journal {
    /** @param {import('./transport.js').Transport} transport @param {string} thread The path of its thread. */
    constructor(transport: import("./transport.js").Transport, thread: string);
    _transport: import("./transport.js").Transport;
    _path: string;
    /**
     * Append an event. Of all events with one `eventKey`, the journal has one, for ever.
     * @param {unknown} event
     * @param {{ eventKey?: string } & WriteOptions} [options]
     * @returns {Promise<Schemas['AppendedView']>}
     */
    append(event: unknown, { eventKey, ...write }?: {
        eventKey?: string;
    } & WriteOptions): Promise<Schemas["AppendedView"]>;
    /**
     * The events in order, after a cursor or from the first; with `follow` also those to come, until the signal.
     * @param {{ after?: string, sinceMs?: number, limit?: number, follow?: boolean, skipTrimmed?: boolean } & ReadOptions} [options]
     * @returns {AsyncGenerator<Schemas['EventView'] & { event: any }, void, void>}
     */
    read({ after, sinceMs, limit, follow, skipTrimmed, stale, signal }?: {
        after?: string;
        sinceMs?: number;
        limit?: number;
        follow?: boolean;
        skipTrimmed?: boolean;
    } & ReadOptions): AsyncGenerator<Schemas["EventView"] & {
        event: any;
    }, void, void>;
}
export type Schemas = import("../types/api.js").components["schemas"];
export type ReadOptions = import("./transport.js").ReadOptions;
export type WriteOptions = import("./transport.js").WriteOptions;
export type Checkpoint = Schemas["CheckpointView"] & {
    state: Record<string, any>;
    metadata: Record<string, any>;
};
export type SaveParts = {
    /**
     * `main` if left out.
     */
    branch?: string | undefined;
    /**
     * The only head that the branch may have; in place of the checkpoint that this handle knows.
     */
    expectHead?: string | undefined;
    /**
     * With `fork`, a save that is not based on a head makes a second one.
     */
    onConflict?: "refuse" | "fork" | undefined;
    metadata?: Record<string, unknown> | undefined;
    /**
     * A name for the checkpoint, unique within its thread.
     */
    label?: string | undefined;
    author?: string | undefined;
};
export type SaveOptions = SaveParts & WriteOptions;
export type Changes = {
    set?: Record<string, unknown>;
    append?: Record<string, unknown[]>;
    remove?: string[];
};
import { Inbox } from './queues.js';
import { Files } from './files.js';
import { Worklist } from './queues.js';
