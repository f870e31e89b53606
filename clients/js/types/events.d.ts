/** @typedef {{ event: string, data: string, id: string | null }} SentEvent */
export class EventParser {
    /** @param {number} bytesMax The longest event. */
    constructor(bytesMax: number);
    _bytesMax: number;
    _decoder: TextDecoder;
    _rest: string;
    /** @type {string[]} */
    _data: string[];
    _event: string;
    /** @type {string | null} */
    _id: string | null;
    _size: number;
    /**
     * The events that these bytes complete.
     * @param {Uint8Array} bytes
     * @returns {SentEvent[]}
     */
    feed(bytes: Uint8Array): SentEvent[];
    /** @param {string} line @returns {SentEvent[]} */
    _line(line: string): SentEvent[];
    _complete(): {
        event: string;
        data: string;
        id: string | null;
    }[];
}
export type SentEvent = {
    event: string;
    data: string;
    id: string | null;
};
