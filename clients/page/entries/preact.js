/** Components: preact with htm and signals, as one module. */
import htm from 'htm'
import { h } from 'preact'

export { Fragment, h, render } from 'preact'
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'
export { batch, computed, effect, signal, useComputed, useSignal, useSignalEffect } from '@preact/signals'
export const html = htm.bind(h)
