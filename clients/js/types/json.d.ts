/** @param {unknown} value @returns {string} */
export function encode(value: unknown): string;
