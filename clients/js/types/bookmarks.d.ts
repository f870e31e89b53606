/**
 * What the client has written and seen, as the nodes' answers tell it.
 *
 * Law: an answer's bookmark covers those that its request sent, so these are dropped; of answers that overlap, each is kept. If they do not fit the
 * bound, the oldest are left out: reads at another node may then be older than what this client saw at the first.
 */
export class Bookmarks {
    /** @param {number} bytesMax */
    constructor(bytesMax: number);
    _bytesMax: number;
    /** @type {string[]} Oldest first. */
    _held: string[];
    /** Those to send with a request. */
    held(): string[];
    /**
     * @param {string | null} told The bookmark of an answer.
     * @param {boolean} partial Whether it left something out.
     * @param {readonly string[]} sent With the request.
     */
    note(told: string | null, partial: boolean, sent: readonly string[]): void;
}
