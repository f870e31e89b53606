export class Counter extends Value {
    /** @param {ReadOptions} [options] @returns {Promise<number>} 0 if nothing was added. */
    value(options?: ReadOptions): Promise<number>;
    /** @param {number | bigint} [amount] @param {WriteOptions} [options] @returns {Promise<number>} The value after it. */
    add(amount?: number | bigint, options?: WriteOptions): Promise<number>;
}
export class Register extends Value {
    /** The value, with those that were assigned at the same time. @param {ReadOptions} [options] @returns {Promise<Schemas['SiblingsView'] & { value: any }>} */
    get(options?: ReadOptions): Promise<Schemas["SiblingsView"] & {
        value: any;
    }>;
    /**
     * @param {unknown} value
     * @param {{ expect?: string, by?: string } & WriteOptions} [options] `expect`: the `version` that it must have; "" if it must have no value. `by`: the author, for the history.
     * @returns {Promise<Schemas['AssignedView']>}
     */
    set(value: unknown, { expect, by, ...write }?: {
        expect?: string;
        by?: string;
    } & WriteOptions): Promise<Schemas["AssignedView"]>;
    /** The last values that it was set to, the latest first, with their authors and times. @param {ReadOptions} [options] @returns {Promise<Schemas['NotedValueView'][]>} */
    history(options?: ReadOptions): Promise<Schemas["NotedValueView"][]>;
}
export class SharedMap extends Value {
    /** All that a key holds. @param {string} key @param {ReadOptions} [options] @returns {Promise<Schemas['MapEntryView']>} */
    get(key: string, options?: ReadOptions): Promise<Schemas["MapEntryView"]>;
    /**
     * The entries in the order of their keys.
     * @param {{ prefix?: string, limit?: number } & ReadOptions} [options] `limit`: how many are asked for at once.
     * @returns {AsyncGenerator<Schemas['MapEntryView'], void, void>}
     */
    entries({ prefix, limit, ...read }?: {
        prefix?: string;
        limit?: number;
    } & ReadOptions): AsyncGenerator<Schemas["MapEntryView"], void, void>;
    /** Set the register of a key. @param {string} key @param {unknown} value @param {{ expect?: string } & WriteOptions} [options] @returns {Promise<Schemas['EntryPutView']>} */
    set(key: string, value: unknown, { expect, ...write }?: {
        expect?: string;
    } & WriteOptions): Promise<Schemas["EntryPutView"]>;
    /** Add to the counter of a key. @param {string} key @param {number} [amount] @param {WriteOptions} [options] @returns {Promise<void>} */
    add(key: string, amount?: number, options?: WriteOptions): Promise<void>;
    /** Add elements to the set of a key, and remove others. @param {string} key @param {{ add?: unknown[], remove?: unknown[] }} changes @param {WriteOptions} [options] @returns {Promise<void>} */
    alter(key: string, { add, remove }: {
        add?: unknown[];
        remove?: unknown[];
    }, options?: WriteOptions): Promise<void>;
    /** @param {string} key @param {WriteOptions} [options] @returns {Promise<boolean>} Whether there was something. */
    remove(key: string, options?: WriteOptions): Promise<boolean>;
}
export class SharedSet extends Value {
    /** @param {ReadOptions & { limit?: number }} [options] `limit`: how many are asked for at once. @returns {AsyncGenerator<any, void, void>} */
    members({ limit, ...options }?: ReadOptions & {
        limit?: number;
    }): AsyncGenerator<any, void, void>;
    /** @param {unknown} element @param {ReadOptions} [options] @returns {Promise<boolean>} */
    has(element: unknown, options?: ReadOptions): Promise<boolean>;
    /** Add and remove elements in one operation. @param {{ add?: unknown[], remove?: unknown[] }} changes @param {WriteOptions} [options] @returns {Promise<Schemas['SetAlteredView']>} */
    alter({ add, remove }: {
        add?: unknown[];
        remove?: unknown[];
    }, options?: WriteOptions): Promise<Schemas["SetAlteredView"]>;
    /** @param {...unknown} elements @returns {Promise<number>} How many were new. */
    add(...elements: unknown[]): Promise<number>;
    /** @param {...unknown} elements @returns {Promise<number>} How many were members. */
    remove(...elements: unknown[]): Promise<number>;
    /** Remove members and return them; another node may return the same. @param {number} [count] @param {WriteOptions} [options] @returns {Promise<any[]>} */
    pop(count?: number, options?: WriteOptions): Promise<any[]>;
}
export class Budget extends Value {
    /** What was granted and spent, and which node may spend how much of the rest alone. @param {ReadOptions} [options] @returns {Promise<Schemas['BudgetStateView']>} */
    get(options?: ReadOptions): Promise<Schemas["BudgetStateView"]>;
    /** What was granted and spent over time, as the node that answers saw it: the oldest first, the last of now. @param {ReadOptions} [options] @returns {Promise<Schemas['BudgetPointView'][]>} */
    course(options?: ReadOptions): Promise<Schemas["BudgetPointView"][]>;
    /** Add to what may be spent. @param {number} amount @param {WriteOptions} [options] @returns {Promise<Schemas['GrantedView']>} */
    grant(amount: number, options?: WriteOptions): Promise<Schemas["GrantedView"]>;
    /** Spend, if the node that is asked has rights to so much or can get them. @param {number} amount @param {WriteOptions} [options] @returns {Promise<Schemas['SpentView']>} */
    spend(amount: number, options?: WriteOptions): Promise<Schemas["SpentView"]>;
}
export class SharedList extends Value {
    /** The elements from an index on. @param {ReadOptions & { start?: number, limit?: number }} [options] `limit`: how many are asked for at once. @returns {AsyncGenerator<{ id: string, value: any }, void, void>} */
    items({ start, limit, ...options }?: ReadOptions & {
        start?: number;
        limit?: number;
    }): AsyncGenerator<{
        id: string;
        value: any;
    }, void, void>;
    /** @param {ReadOptions} [options] @returns {Promise<number>} */
    size(options?: ReadOptions): Promise<number>;
    /** Add values at the end. @param {...unknown} values @returns {Promise<string[]>} The ids of their elements. */
    push(...values: unknown[]): Promise<string[]>;
    /** Insert values at an index, before or after an element, or at the end. @param {unknown[]} values @param {Place} [place] @param {WriteOptions} [options] @returns {Promise<string[]>} */
    insert(values: unknown[], place?: Place, options?: WriteOptions): Promise<string[]>;
    /** Move an element; false if there is none. @param {string} element @param {Place} [place] @param {WriteOptions} [options] @returns {Promise<boolean>} */
    move(element: string, place?: Place, options?: WriteOptions): Promise<boolean>;
    /** Remove elements by their ids. @param {...string} elements @returns {Promise<any[]>} Their values. */
    remove(...elements: string[]): Promise<any[]>;
    /** Remove elements by their ids, with a key or a time. @param {string[]} elements @param {WriteOptions} [options] @returns {Promise<any[]>} Their values. */
    removeAll(elements: string[], options?: WriteOptions): Promise<any[]>;
}
export type Place = {
    index?: number;
    before?: string;
    after?: string;
};
export type Schemas = import("../types/api.js").components["schemas"];
export type ReadOptions = import("./transport.js").ReadOptions;
export type WriteOptions = import("./transport.js").WriteOptions;
/** What all of them have: a name, a path, and an end. */
declare class Value {
    /** @param {import('./transport.js').Transport} transport @param {string} space @param {string} family @param {string} name */
    constructor(transport: import("./transport.js").Transport, space: string, family: string, name: string);
    _transport: import("./transport.js").Transport;
    _path: string;
    name: string;
    /** Delete it on every node. @param {WriteOptions} [options] @returns {Promise<boolean>} Whether there was one. */
    delete(options?: WriteOptions): Promise<boolean>;
}
export {};
