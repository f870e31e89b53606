/** Plots over time. */
export { default } from 'uplot'
