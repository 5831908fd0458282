// Asks porcupine whether a history is linearizable. A line of the standard input is a call: its kind, a position
// in the log of client entries, its begin and its end. The first line of the output is Ok, Illegal or Unknown.
package main

import (
	"bufio"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

type call struct {
	kind string
	at   int
}

// The state is the number of client entries: which entry is where is known from the final log.
var model = porcupine.Model{
	Init: func() interface{} { return 0 },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		size, asked := state.(int), input.(call)
		switch asked.kind {
		case "append":
			return size == asked.at, size + 1
		case "get":
			return size > asked.at, size
		default: // beyond
			return size <= asked.at, size
		}
	},
}

func main() {
	var operations []porcupine.Operation
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked call
		var client int
		var began, ended int64
		if _, err := fmt.Sscan(lines.Text(), &client, &asked.kind, &asked.at, &began, &ended); err != nil {
			fmt.Println("Unknown", err)
			return
		}
		operations = append(operations, porcupine.Operation{
			ClientId: client, Input: asked, Call: began, Output: nil, Return: ended,
		})
	}
	fmt.Println(porcupine.CheckOperationsTimeout(model, operations, 5*time.Minute))
}
