/** The page, until its parts are here: the node's own summary. */

const answer = await fetch('./', { headers: { Accept: 'application/json' } })
const node = await answer.json()
const text = document.createElement('p')
text.textContent = `Shoal ${node.version}, node ${node.node}`
document.body.append(text)
