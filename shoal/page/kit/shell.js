/** Commands to copy into a shell: a name is one word of it, whatever it holds. */

/** @param {string} text */
const word = (text) => /^[\w.:@/]+[\w.:@/-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`

/**
 * A command with names in it: shell`shoal register set ${name} …`. There is none for a name that a program would take for an option, or that ends the line.
 * @param {TemplateStringsArray} parts @param {...string} names
 */
export const shell = (parts, ...names) => names.some((name) => /^-|[\0-\x1f\x7f]/.test(name)) ? '' : parts.reduce((all, part, nth) => all + word(names[nth - 1]) + part)
