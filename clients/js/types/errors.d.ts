/**
 * The error of an answer that is no success.
 * @param {number} status
 * @param {string} text The body.
 * @param {string} url Of the node.
 */
export function errorOf(status: number, text: string, url: string): ShoalError;
/** The one class of errors. A node's problem document becomes one; `docs/ERRORS.md` lists the codes. */
/** @typedef {'no' | 'yes' | 'unknown'} Written */
/**
 * @typedef {object} Facts
 * @property {number} [status] The HTTP status; 0 if no node answered.
 * @property {Written} [written] Whether anything was written.
 * @property {boolean} [retryable] Whether the same call, unchanged, may succeed later or at another node.
 * @property {Record<string, unknown>} [detail] Further values, such as `heads`.
 * @property {unknown} [cause]
 */
export class ShoalError extends Error {
    /**
     * @param {string} code The name of the error, such as `head-moved`.
     * @param {string} message What happened, whether anything was written, and what to do.
     * @param {Facts} [facts]
     */
    constructor(code: string, message: string, { status, written, retryable, detail, cause }?: Facts);
    code: string;
    status: number;
    /** @type {Written} */
    written: Written;
    retryable: boolean;
    detail: Record<string, unknown>;
    /** The idempotency key of the write that failed: the same call with it, at any node, counts once. @type {string | undefined} */
    key: string | undefined;
}
export function invalid(message: string): ShoalError;
export type Written = "no" | "yes" | "unknown";
export type Facts = {
    /**
     * The HTTP status; 0 if no node answered.
     */
    status?: number | undefined;
    /**
     * Whether anything was written.
     */
    written?: Written | undefined;
    /**
     * Whether the same call, unchanged, may succeed later or at another node.
     */
    retryable?: boolean | undefined;
    /**
     * Further values, such as `heads`.
     */
    detail?: Record<string, unknown> | undefined;
    cause?: unknown;
};
