export function connect(urls: string | readonly string[], options?: import("./options.js").Options): Store;
export class Store {
    /** @param {Transport} transport Use `connect`. */
    constructor(transport: Transport);
    _transport: Transport;
    /** @param {string} name @returns {Space} */
    space(name: string): Space;
    /** The names of the spaces. @returns {AsyncGenerator<string, void, void>} */
    spaces(): AsyncGenerator<string, void, void>;
    /**
     * Each durable change in several spaces, over one connection: hints to read again. Use `for await`; after a reconnect comes a `reset`.
     * @param {readonly string[]} spaces At most 64.
     * @param {Omit<import('./watch.js').WatchOptions, 'prefix' | 'after'>} [options]
     */
    watch(spaces: readonly string[], options?: Omit<import("./watch.js").WatchOptions, "prefix" | "after">): AsyncGenerator<import("./watch.js").WatchEvent, void, void>;
    /** Who this client is, and what its token grants. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['AccessView']>} */
    access(options?: {
        signal?: AbortSignal;
    }): Promise<Schemas["AccessView"]>;
    /** What the node says of itself: its id and version, and the other members' addresses. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['Welcome']>} */
    about(options?: {
        signal?: AbortSignal;
    }): Promise<Schemas["Welcome"]>;
    /** Have the node keep a token in a cookie of its own page, which no script can read. @param {string} token @returns {Promise<Schemas['AccessView']>} */
    signIn(token: string): Promise<Schemas["AccessView"]>;
    /** Have the node's page forget the token. @returns {Promise<Schemas['AccessView']>} */
    signOut(): Promise<Schemas["AccessView"]>;
    /** The members, their lag, and the node that answers, as that node sees them. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['ClusterDocument']>} */
    cluster(options?: {
        signal?: AbortSignal;
    }): Promise<Schemas["ClusterDocument"]>;
    /** What is wrong with the node that answers and its cluster, the worst first, and how to mend it. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['ConditionsView']>} */
    conditions(options?: {
        signal?: AbortSignal;
    }): Promise<Schemas["ConditionsView"]>;
    /** How long requests took at the node that answers, and how they ended. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['Figures']>} */
    figures(options?: {
        signal?: AbortSignal;
    }): Promise<Schemas["Figures"]>;
    /**
     * What the disk of the node that answers holds: the largest spaces, what keeps the log, and how both grew.
     * @param {{ sinceMs?: number, limit?: number, signal?: AbortSignal }} [options] `sinceMs`: the history from then on; `limit`: spaces, at most 100.
     * @returns {Promise<Schemas['UsageView']>}
     */
    usage({ sinceMs, limit, ...read }?: {
        sinceMs?: number;
        limit?: number;
        signal?: AbortSignal;
    }): Promise<Schemas["UsageView"]>;
    /** Where the cluster is backed up, and how far the node that answers knows that to be. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['BackupView']>} */
    backup(options?: {
        signal?: AbortSignal;
    }): Promise<Schemas["BackupView"]>;
    /** The list of the members, and how far a change of it is. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['MembersView']>} */
    members(options?: {
        signal?: AbortSignal;
    }): Promise<Schemas["MembersView"]>;
}
/** @typedef {'threads' | 'documents' | 'counters' | 'registers' | 'maps' | 'sets' | 'lists' | 'budgets' | 'items' | 'schemas'} Family */
export class Space {
    /** @param {Transport} transport @param {string} name */
    constructor(transport: Transport, name: string);
    _transport: Transport;
    name: string;
    files: Files;
    /** @param {string} name */
    thread(name: string): Thread;
    /** @param {string} name */
    counter(name: string): Counter;
    /** @param {string} name */
    register(name: string): Register;
    /** @param {string} name */
    map(name: string): SharedMap;
    /** @param {string} name */
    set(name: string): SharedSet;
    /** @param {string} name @returns {SharedList} */
    list(name: string): SharedList;
    /** @param {string} name */
    budget(name: string): Budget;
    /** The leases that are held, also those of threads. @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['LeaseStateView'][]>} */
    leases(options?: import("./transport.js").ReadOptions): Promise<Schemas["LeaseStateView"][]>;
    /**
     * End a lease that somebody else holds, as an operator. Resolves to false if it has another fencing number by now: then it is kept.
     * @param {string} lease @param {{ fence: number, thread?: boolean, to?: string, by?: string, reason?: string } & import('./transport.js').WriteOptions} options
     *   `fence`: as `leases` shows it; `thread`: it is the lease of the thread of this name; `to`: the holder that gets it, which waits.
     * @returns {Promise<boolean>}
     */
    endLease(lease: string, { fence, thread, to, by, reason, ...write }: {
        fence: number;
        thread?: boolean;
        to?: string;
        by?: string;
        reason?: string;
    } & import("./transport.js").WriteOptions): Promise<boolean>;
    /** The clients that are present, with what they say of themselves. @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['PresentView'][]>} */
    presence(options?: import("./transport.js").ReadOptions): Promise<Schemas["PresentView"][]>;
    /** The limits of the space, and what it uses of them at the node that answers. @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['QuotaView']>} */
    quota(options?: import("./transport.js").ReadOptions): Promise<Schemas["QuotaView"]>;
    /** The rules of retention of the space, and what the node that answers did by them. @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['RetentionRulesView']>} */
    retention(options?: import("./transport.js").ReadOptions): Promise<Schemas["RetentionRulesView"]>;
    /**
     * What the space holds at the node that answers: by kind, by beginnings of names, its largest objects, and how it grew.
     * @param {{ sinceMs?: number, limit?: number } & import('./transport.js').ReadOptions} [options] `sinceMs`: the history from then on; `limit`: prefixes, and objects, at most 50.
     * @returns {Promise<Schemas['SpaceUsageView']>}
     */
    usage({ sinceMs, limit, ...read }?: {
        sinceMs?: number;
        limit?: number;
    } & import("./transport.js").ReadOptions): Promise<Schemas["SpaceUsageView"]>;
    /** A document as JSON: root → content. @param {string} name @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Record<string, any>>} */
    content(name: string, options?: import("./transport.js").ReadOptions): Promise<Record<string, any>>;
    /**
     * Change a document by the steps of a JSON Patch (RFC 6902), each of which is an edit that merges with others.
     * @param {string} name @param {object[]} steps @param {{ author?: string } & import('./transport.js').WriteOptions} [options]
     * @returns {Promise<Record<string, any>>} The document after it.
     */
    patch(name: string, steps: object[], { author, ...write }?: {
        author?: string;
    } & import("./transport.js").WriteOptions): Promise<Record<string, any>>;
    /** Values of a document that others overwrote at the same time. @param {string} name @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['ConflictsView']>} */
    conflicts(name: string, options?: import("./transport.js").ReadOptions): Promise<Schemas["ConflictsView"]>;
    /** The authors of a document's passages, also those who have left, by the ids of their Yjs clients. @param {string} name @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['DocumentAuthorsView']>} */
    authors(name: string, options?: import("./transport.js").ReadOptions): Promise<Schemas["DocumentAuthorsView"]>;
    get items(): Items;
    /**
     * Join a document with its editors and agents, as a Yjs client.
     * @template {import('./document.js').Provider} P
     * @param {string} name
     * @param {import('./document.js').DocumentOptions<P>} options
     * @returns {Promise<SharedDocument<P>>}
     */
    document<P extends import("./document.js").Provider>(name: string, options: import("./document.js").DocumentOptions<P>): Promise<SharedDocument<P>>;
    /**
     * A page of the threads at a glance: each with its state, and why, in a sentence. While `more` is true, ask again with its `cursor` as `after`.
     * @param {SummaryOptions} [options]
     * @returns {Promise<Schemas['SummariesView']>}
     */
    summaries({ state, text, author, tag, prefix, stuckAfterS, after, limit, ...read }?: SummaryOptions): Promise<Schemas["SummariesView"]>;
    /**
     * A page of the worklists and inboxes of the space's threads; the first one also has the leases. While `more` is true, ask again with its `cursor` as `after`.
     * @param {{ prefix?: string, after?: string, limit?: number } & import('./transport.js').ReadOptions} [options]
     * @returns {Promise<Schemas['WorkView']>}
     */
    work({ prefix, after, limit, ...read }?: {
        prefix?: string;
        after?: string;
        limit?: number;
    } & import("./transport.js").ReadOptions): Promise<Schemas["WorkView"]>;
    /**
     * A page of what was done in the space's threads, the newest first. While `more` is true, ask again with its `cursor` as `after`.
     * @param {{ prefix?: string } & AuditOptions} [options]
     * @returns {Promise<Schemas['TimelineView']>}
     */
    audit({ prefix, kind, by, text, sinceMs, after, limit, ...read }?: {
        prefix?: string;
    } & AuditOptions): Promise<Schemas["TimelineView"]>;
    /**
     * The newest things that were done, in one order of time of all the space's threads. It asks once for each 500 threads, and again only for what is newer than what it has.
     * `more`: older ones were left out; `threads`: so many were looked through; `beyond`: there are others, after these by name, that were not.
     * @param {number} count
     * @param {{ prefix?: string, groups?: number } & Omit<AuditOptions, 'after' | 'limit'>} [options] `groups` of 500 threads, at most; 20 if left out.
     * @returns {Promise<{ entries: Schemas['TimelineEntryView'][], more: boolean, threads: number, beyond: boolean }>}
     */
    newest(count: number, { groups, sinceMs, ...options }?: {
        prefix?: string;
        groups?: number;
    } & Omit<AuditOptions, "after" | "limit">): Promise<{
        entries: Schemas["TimelineEntryView"][];
        more: boolean;
        threads: number;
        beyond: boolean;
    }>;
    /**
     * A page of the places that have a text, in any case of letters. While `more` is true, ask again with its `cursor` as `after`; it says how many threads were `looked` at.
     * @param {string} text
     * @param {{ prefix?: string, place?: 'name' | 'label' | 'tag' | 'metadata' | 'state', after?: string, limit?: number } & import('./transport.js').ReadOptions} [options]
     * @returns {Promise<Schemas['HitsView']>}
     */
    search(text: string, { prefix, place, after, limit, ...read }?: {
        prefix?: string;
        place?: "name" | "label" | "tag" | "metadata" | "state";
        after?: string;
        limit?: number;
    } & import("./transport.js").ReadOptions): Promise<Schemas["HitsView"]>;
    /**
     * Each durable change in the space, once, also if the node goes away. Use `for await`.
     * @param {import('./watch.js').WatchOptions} [options]
     */
    watch(options?: import("./watch.js").WatchOptions): AsyncGenerator<import("./watch.js").WatchEvent, void, void>;
    /**
     * The names of the objects of a family, in byte order.
     * @param {Family} family
     * @param {{ prefix?: string, signal?: AbortSignal }} [options]
     * @returns {AsyncGenerator<string, void, void>}
     */
    names(family: Family, { prefix, ...read }?: {
        prefix?: string;
        signal?: AbortSignal;
    }): AsyncGenerator<string, void, void>;
}
export type Schemas = import("../types/api.js").components["schemas"];
export type ReadOptions = import("./transport.js").ReadOptions;
export type SummaryOptionsOwn = {
    /**
     * Any if left out.
     */
    state?: "unknown" | "stuck" | "waits" | "well" | undefined;
    /**
     * Part of a name, a reason, a label, an author, a tag, a driver or an open step.
     */
    text?: string | undefined;
    /**
     * Of the newest checkpoint, or of the status.
     */
    author?: string | undefined;
    /**
     * A text in the list `tags` of the newest checkpoint's metadata.
     */
    tag?: string | undefined;
    /**
     * Of names.
     */
    prefix?: string | undefined;
    /**
     * A step that is open for so many seconds makes its thread stuck; 600 if left out.
     */
    stuckAfterS?: number | undefined;
    /**
     * The `cursor` of the page before.
     */
    after?: string | undefined;
    /**
     * At most so many; 100 if left out.
     */
    limit?: number | undefined;
};
export type SummaryOptions = SummaryOptionsOwn & import("./transport.js").ReadOptions;
export type AuditOptionsOwn = {
    /**
     * All if left out.
     */
    kind?: "event" | "step" | "checkpoint" | undefined;
    /**
     * Only of this author.
     */
    by?: string | undefined;
    /**
     * Only with this text, in any case of letters.
     */
    text?: string | undefined;
    /**
     * Nothing older.
     */
    sinceMs?: number | undefined;
    /**
     * The `cursor` of the page before.
     */
    after?: string | undefined;
    /**
     * At most so many; 100 if left out.
     */
    limit?: number | undefined;
};
export type AuditOptions = AuditOptionsOwn & import("./transport.js").ReadOptions;
export type Family = "threads" | "documents" | "counters" | "registers" | "maps" | "sets" | "lists" | "budgets" | "items" | "schemas";
import { Transport } from './transport.js';
import { Files } from './files.js';
import { Thread } from './thread.js';
import { Counter } from './values.js';
import { Register } from './values.js';
import { SharedMap } from './values.js';
import { SharedSet } from './values.js';
import { SharedList } from './values.js';
import { Budget } from './values.js';
import { Items } from './items.js';
import { SharedDocument } from './document.js';
