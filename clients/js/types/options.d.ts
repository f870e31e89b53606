/** @param {Options} options @returns {Settings} */
export function settings(options: Options): Settings;
/**
 * The addresses of the nodes, without a slash at the end.
 * @param {string | readonly string[]} given
 * @returns {string[]}
 */
export function addresses(given: string | readonly string[]): string[];
export type Options = {
    /**
     * A token, or a function that returns one, or undefined if a cookie is to count. It is
     * called for each request, and once more if a token is refused.
     */
    token?: string | (() => string | undefined | Promise<string | undefined>) | undefined;
    /**
     * How long one call may take, retries included (30,000).
     */
    requestTimeoutMs?: number | undefined;
    /**
     * How long one attempt at one node may take (10,000).
     */
    attemptTimeoutMs?: number | undefined;
    /**
     * The first pause between two attempts; each next one doubles (100).
     */
    retryDelayMs?: number | undefined;
    /**
     * The longest pause between two attempts (2,000).
     */
    retryDelayMsMax?: number | undefined;
    /**
     * A stream on which nothing came for so long is opened again; longer than the node's `heartbeat_s` (60,000).
     */
    streamSilenceMs?: number | undefined;
    /**
     * The longest event of a stream (1 MiB).
     */
    eventBytesMax?: number | undefined;
    /**
     * The bookmarks that are sent with a request (12 KiB).
     */
    bookmarkBytesMax?: number | undefined;
    /**
     * The trace (W3C Trace Context) that requests belong to: a function that is asked once for each call, at its beginning.
     */
    trace?: Trace | undefined;
    /**
     * In place of the global one, such as one that trusts a CA of yours.
     */
    fetch?: typeof fetch | undefined;
};
/**
 * A `traceparent`, or both headers; undefined if there is no trace.
 */
export type Trace = () => string | {
    traceparent?: string;
    tracestate?: string;
} | undefined;
export type Settings = Required<Omit<Options, "token" | "trace">> & Pick<Options, "token" | "trace">;
